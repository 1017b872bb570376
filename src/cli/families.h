/* The attention modules in a weights file, found by their tensors' names. */
#ifndef HEADWAY_CLI_FAMILIES_H
#define HEADWAY_CLI_FAMILIES_H

#include "cli/config.h"
#include "cli/safetensors.h"

enum family_form {
    FORM_SEPARATE,       /* a matrix each for query, key and value */
    FORM_FUSED,          /* one matrix */
    FORM_TORCH_FUSED,    /* one matrix, names with _weight and _bias */
    FORM_TORCH_SEPARATE, /* a matrix each, one bias for the three */
    FORM_CONV1D,         /* GPT-2: fused; or, with q_attn, key and value fused */
    FORM_HEADS           /* a matrix each for every head */
};

/* Names are relative to the module and lack their ".weight", ".bias". */
struct family {
    const char *name;
    enum family_form form;
    const char *parent; /* the module's last component, NULL: any */
    const char *query, *key, *value;
    const char *fused;
    const char *outs[4]; /* the output projection: one of these */
    enum qkv_rows rows;  /* of FORM_FUSED, as the name alone tells */
    int unscaled;        /* scores are not scaled */
};

struct module {
    char *path;  /* the prefix of its tensors without the last dot; "" at the root */
    char *inner; /* the same, as deep as the query's tensors lie */
    const struct family *family;
};

struct modules {
    struct module *items; /* in natural order of path: 2 before 10 */
    int count;
};

/* 0, or -1 with error. No module at all is no error. */
int modules_find(const struct tensors *tensors, struct modules *modules, char *error);
void modules_free(struct modules *modules);

/* The module that `layer` (a prefix, a number, or NULL) picks; NULL with error. */
const struct module *modules_choose(const struct modules *modules, const char *layer,
                                    const char *weights_path, char *error);

/* What people call it, told from the output projection's name where families share the rest. */
const char *module_family_name(const struct module *module, const char *out);

/* A relative tensor name joined to the module's path, cut to size. Returns text. */
const char *module_tensor(char *text, size_t size, const struct module *module, const char *stem,
                          const char *end);

#define TENSOR_NAME_SIZE 1024

#endif
