/* The list of rows, and the choice among them. */
#include "cpu/kernels.h"

#include <stdio.h>
#include <string.h>

#include "api/engine.h"
#include "cpu/tiers.h"

/* The build writes headway_rows.h from arch/CMakeLists.txt: one HEADWAY_ROW or HEADWAY_ROW_ABSENT
 * for every row, best first. */
#define HEADWAY_ROW(name) extern const struct headway_row headway_row_##name;
#define HEADWAY_ROW_ABSENT(name, reason)
#include "headway_rows.h"
#undef HEADWAY_ROW
#undef HEADWAY_ROW_ABSENT

#define HEADWAY_ROW(name) {#name, &headway_row_##name, NULL},
#define HEADWAY_ROW_ABSENT(name, reason) {#name, NULL, reason},
static const struct headway_row_entry rows[] = {
#include "headway_rows.h"
};
#undef HEADWAY_ROW
#undef HEADWAY_ROW_ABSENT

#define ROW_COUNT ((int)(sizeof rows / sizeof *rows))

const struct headway_row_entry *headway_row_at(int index)
{
    return index >= 0 && index < ROW_COUNT ? &rows[index] : NULL;
}

static void list_names(char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < ROW_COUNT && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", rows[i].name);
}

static headway_status choose_best(uint32_t tiers, const struct headway_row **row, char *reason,
                                  size_t reason_size)
{
    char names[128];

    for (int i = 0; i < ROW_COUNT; i++)
        if (rows[i].row && !headway_tier_missing(rows[i].row->tiers, tiers)) {
            *row = rows[i].row;
            return HEADWAY_OK;
        }
    list_names(names, sizeof names);
    snprintf(reason, reason_size, "isa: none of %s is built and can run here", names);
    return HEADWAY_ERROR_CANNOT_RUN;
}

headway_status headway_row_choose(const char *name, uint32_t tiers, const struct headway_row **row,
                                  char *reason, size_t reason_size)
{
    const char *missing;
    char names[128];
    int i = 0;

    if (!name)
        return choose_best(tiers, row, reason, reason_size);
    while (i < ROW_COUNT && strcmp(rows[i].name, name) != 0)
        i++;
    if (i == ROW_COUNT) {
        list_names(names, sizeof names);
        snprintf(reason, reason_size, "isa \"%.60s\" is not in this build: expected one of %s",
                 name, names);
        return HEADWAY_ERROR_NOT_BUILT;
    }
    if (!rows[i].row) {
        snprintf(reason, reason_size, "isa \"%s\" is not in this build: %s", name, rows[i].absent);
        return HEADWAY_ERROR_NOT_BUILT;
    }
    missing = headway_tier_missing(rows[i].row->tiers, tiers);
    if (missing) {
        snprintf(reason, reason_size, "isa \"%s\" cannot run here: it %s", name, missing);
        return HEADWAY_ERROR_CANNOT_RUN;
    }
    *row = rows[i].row;
    return HEADWAY_OK;
}
