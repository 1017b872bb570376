/* What a config.json asks for and this version does not compute. */
#ifndef HEADWAY_CLI_CONFIG_REFUSE_H
#define HEADWAY_CLI_CONFIG_REFUSE_H

#include "cli/config.h"
#include "cli/json.h"

/* Appends to facts->refused; facts->model_type is read. */
void config_refuse(const cJSON *part, const char *module, struct model_facts *facts);

#endif
