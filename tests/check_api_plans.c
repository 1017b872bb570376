/* How calls are cut, where bits alone would not tell. */
#include "check_api.h"

#include <string.h>

/* Whether the plan of `rows` query rows on `keys` keys of one head of 128 says `word`. */
static int plan_says(int threads, int64_t rows, int64_t keys, const char *word)
{
    const int64_t query_shape[] = {1, rows, 1, 128}, key_shape[] = {1, keys, 1, 128};
    const headway_tensor query = headway_tensor_dense(NULL, HEADWAY_F32, 4, query_shape);
    const headway_tensor key = headway_tensor_dense(NULL, HEADWAY_F32, 4, key_shape);
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *other = NULL;
    char text[2000] = "";
    config.threads = threads;
    CHECK(headway_engine_create(&config, &other) == HEADWAY_OK &&
              headway_attention_explain(other, NULL, &query, &key, &key, text, sizeof text) ==
                  HEADWAY_OK,
          "no plan");
    headway_engine_destroy(other);
    return strstr(text, word) != NULL;
}

/* What tiles that go together keep is one head's for each thread, however many heads there are. */
static void check_kept(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *other = NULL;
    size_t needed[2] = {0, 1};
    config.threads = 1;
    CHECK(headway_engine_create(&config, &other) == HEADWAY_OK, "no engine");
    for (int i = 0; i < 2; i++) {
        const int64_t query_shape[] = {i ? 64 : 1, 100, 8, 128};
        const int64_t key_shape[] = {i ? 64 : 1, 40000, 8, 128};
        const headway_tensor query = headway_tensor_dense(NULL, HEADWAY_F32, 4, query_shape);
        const headway_tensor key = headway_tensor_dense(NULL, HEADWAY_F32, 4, key_shape);
        CHECK(headway_attention_workspace(other, NULL, &query, &key, &key, &needed[i]) ==
                  HEADWAY_OK,
              "no workspace");
    }
    CHECK(needed[0] == needed[1], "%zu bytes for a sequence, %zu for 64", needed[0], needed[1]);
    headway_engine_destroy(other);
}

/* A head's keys come from memory once for all rows; bits alone would not tell. */
void check_plans(void)
{
    static const char together[] = "go through together";
    if (!check_case("attention: explain: how often keys are read"))
        return;
    CHECK(plan_says(1, 100, 40000, together), "tiles of 100 rows read 40,000 keys apart");
    CHECK(!plan_says(1, 1, 40000, "before"), "one row of one thread is cut");
    CHECK(!plan_says(1, 100, 600, together), "keys that level 2 holds are cut");
    CHECK(!plan_says(1, 4000, 40000, together), "the states of 4000 rows are kept");
    check_kept();
}
