#include "heatmap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL = 10 }; /* characters of a token that are shown */

int tokens_read(const char *path, int sentence, struct tokens *tokens)
{
    FILE *file = fopen(path, "r");
    int line = -1;
    while (file && line < sentence && fgets(tokens->text, sizeof tokens->text, file))
        line++;
    if (file)
        fclose(file);
    tokens->count = 0;
    if (line != sentence)
        return -1;
    for (char *word = strtok(tokens->text, " \n"); word && tokens->count < 128;
         word = strtok(NULL, " \n"))
        tokens->list[tokens->count++] = word;
    return 0;
}

static int is_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return strstr(value, "UTF-8") || strstr(value, "utf8") || strstr(value, "utf-8");
    }
    return 0;
}

/* The tokens looked at, read downwards, each over its column of two characters. */
static void print_columns(const struct tokens *tokens)
{
    int height = 0;
    for (int j = 0; j < tokens->count; j++) {
        int length = (int)strlen(tokens->list[j]);
        length = length > LABEL ? LABEL : length;
        height = length > height ? length : height;
    }
    for (int line = 0; line < height; line++) {
        printf("%*s  ", LABEL, "");
        for (int j = 0; j < tokens->count; j++) {
            int length = (int)strlen(tokens->list[j]);
            length = length > LABEL ? LABEL : length;
            int at = line - (height - length);
            printf("%c ", at >= 0 ? tokens->list[j][at] : ' ');
        }
        printf("\n");
    }
}

void heatmap_print(const struct tokens *tokens, const float *weights, int64_t stride)
{
    static const char *const shades[] = {"  ", "░░", "▒▒", "▓▓", "██"};
    static const char *const letters[] = {"  ", "..", "--", "++", "##"};
    static const double from[] = {0, 0.04, 0.12, 0.3, 0.6};
    const char *const *cells = is_utf8() ? shades : letters;
    print_columns(tokens);
    for (int i = 0; i < tokens->count; i++) {
        printf("%*.*s  ", LABEL, LABEL, tokens->list[i]);
        for (int j = 0; j < tokens->count; j++) {
            int shade = 4;
            while (shade > 0 && !(weights[i * stride + j] >= from[shade]))
                shade--;
            printf("%s", cells[shade]);
        }
        printf("\n");
    }
    printf("%*s  weight", LABEL, "");
    for (int shade = 1; shade < 5; shade++)
        printf("   %s from %.2f", cells[shade], from[shade]);
    printf("\n");
}
