#define _XOPEN_SOURCE 700

#include "check_files.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[512];

const char *files_path(const char *name)
{
    static char texts[8][1024];
    static int next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%s/%s", root, name);
    return text;
}

void files_folder(const char *name)
{
    mkdir(files_path(name), 0777);
}

void files_write(const char *name, const void *bytes, size_t count)
{
    /* A new file each time: some file systems wait for the disk when an old one is cut short. */
    unlink(files_path(name));
    FILE *file = fopen(files_path(name), "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) != 0) {
        check_fail(__FILE__, __LINE__, "%s could not be made", name);
    }
}

char *files_read(const char *name, size_t *count)
{
    FILE *file = fopen(files_path(name), "rb");
    char *bytes = calloc(1, 1 << 20);
    *count = 0;
    if (!file || !bytes) {
        check_fail(__FILE__, __LINE__, "%s could not be read", name);
        return bytes;
    }
    *count = fread(bytes, 1, (1 << 20) - 1, file);
    fclose(file);
    return bytes;
}

int files_entries(const char *folder)
{
    DIR *directory = opendir(files_path(folder));
    int count = -2;
    while (directory && readdir(directory)) {
        count++;
    }
    if (directory) {
        closedir(directory);
    }
    return count;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    return where->level == 0 && strcmp(path, root) != 0 ? 0 : remove(path);
}

void files_empty(const char *folder)
{
    files_folder(folder);
    nftw(files_path(folder), remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

void files_check_error(const char *error, const char *words)
{
    char text[256];
    CHECK(error[0] != 0, "no error was reported, expected '%s'", words);
    CHECK(!strchr(error, '\n'), "the error has several lines: %s", error);
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok(text, "|"); word; word = strtok(NULL, "|")) {
        CHECK(strstr(error, word), "the error lacks '%s': %s", word, error);
    }
}

void maker_start(struct maker *m)
{
    memset(m, 0, sizeof *m);
    m->header[0] = '{';
    m->header_length = 1;
}

static void put_value(unsigned char *to, const char *type, double value)
{
    float single = (float)value;
    if (strcmp(type, "F64") == 0) {
        memcpy(to, &value, sizeof value);
    } else if (strcmp(type, "F32") == 0) {
        memcpy(to, &single, sizeof single);
    } else if (strcmp(type, "F16") == 0) {
        array_convert_elements(ARRAY_F16, to, ARRAY_F64, &value, 1);
    } else if (strcmp(type, "BF16") == 0) {
        array_convert_elements(ARRAY_BF16, to, ARRAY_F64, &value, 1);
    }
}

void maker_add(struct maker *m, const char *name, const char *type, int rank, int64_t a, int64_t b,
               int64_t c, int64_t d)
{
    static const struct {
        const char *name;
        size_t size;
    } sizes[] = {{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8},
                 {"I64", 8}, {"U8", 1},  {"BOOL", 1}, {"I8", 1}};
    const int64_t shape[] = {a, b, c, d};
    char text[256] = "[";
    size_t size = 4;
    size_t count = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size = strcmp(sizes[i].name, type) == 0 ? sizes[i].size : size;
    }
    for (int axis = 0; axis < rank; axis++) {
        count *= (size_t)shape[axis];
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", axis ? "," : "",
                 (long long)shape[axis]);
    }
    m->header_length += (size_t)snprintf(
        m->header + m->header_length, sizeof m->header - m->header_length,
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s],\"data_offsets\":[%zu,%zu]}", m->count ? "," : "",
        name, type, text, m->data_length, m->data_length + count * size);
    m->data = realloc(m->data, m->data_length + count * size + 1);
    memset(m->data + m->data_length, 0, count * size);
    for (size_t i = 0; i < count; i++) {
        put_value(m->data + m->data_length + i * size, type, 4096.0 * m->count + (double)i);
    }
    m->data_length += count * size;
    snprintf(m->names[m->count++], sizeof m->names[0], "%s", name);
}

void maker_matrix(struct maker *m, const char *name, int64_t rows, int64_t columns)
{
    maker_add(m, name, "F32", 2, rows, columns, 0, 0);
}

void maker_vector(struct maker *m, const char *name, int64_t count)
{
    maker_add(m, name, "F32", 1, count, 0, 0, 0);
}

void maker_write(struct maker *m, const char *path, int padded_by)
{
    m->header[m->header_length++] = '}';
    for (int i = 0; i < padded_by; i++) {
        m->header[m->header_length++] = ' ';
    }
    unsigned char *file = malloc(8 + m->header_length + m->data_length);
    for (int i = 0; i < 8; i++) {
        file[i] = (unsigned char)(m->header_length >> (8 * i));
    }
    memcpy(file + 8, m->header, m->header_length);
    if (m->data_length > 0) {
        memcpy(file + 8 + m->header_length, m->data, m->data_length);
    }
    files_write(path, file, 8 + m->header_length + m->data_length);
    free(file);
    free(m->data);
    m->data = NULL;
}

float maker_value(const struct maker *m, const char *name, int64_t i)
{
    for (int k = 0; k < m->count; k++) {
        if (strcmp(m->names[k], name) == 0) {
            return (float)(4096 * k + i);
        }
    }
    check_fail(__FILE__, __LINE__, "the test asks for the tensor %s, which it has not made", name);
    return 0;
}

int main(int argc, char **argv)
{
    const char *temporary = getenv("TMPDIR");
    check_begin(argc, argv);
    snprintf(root, sizeof root, "%s/headway-files-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(root)) {
        fprintf(stderr, "check_files: no temporary folder can be made\n");
        return 1;
    }
    check_npy();
    check_npy_writing();
    check_conversions();
    check_safetensors();
    check_shards();
    check_families();
    check_choices();
    check_config();
    check_models_meaning();
    check_locale();
    nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return check_end();
}
