/* A host that knows nothing of the library until it loads it, again and again: threads outlive the
 * unloading, thread-local storage is nearly full, floating-point modes stay. Nothing of the library or
 * of OpenMP is linked.  check_load LIBRARY */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <float.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "headway/headway.h"

enum { LOADS = 50, TOKENS = 200, HEADS = 4, SIZE = 64, COUNT = TOKENS * HEADS * SIZE };

static _Thread_local char host_storage[128 * 1024] = {1};
static float input[COUNT], expected[COUNT], output[COUNT];
static int failures;

static void fail(const char *what)
{
    printf("FAIL %s\n", what);
    failures++;
}

static unsigned long modes(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~0x3fu;
#else
    unsigned long value;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(value));
    return value;
#endif
}

static void *function(void *library, const char *name, void *at, size_t size)
{
    void *found = dlsym(library, name);
    if (!found) {
        fail(name);
        exit(1);
    }
    memcpy(at, &found, size);
    return found;
}

/* A call on two threads of OpenMP's. */
static void use(void *library, float *out)
{
    headway_status (*create)(const headway_engine_config *, headway_engine **);
    void (*destroy)(headway_engine *);
    headway_status (*size)(const headway_engine *, const headway_attention_params *,
                           const headway_tensor *, const headway_tensor *, const headway_tensor *,
                           size_t *);
    headway_status (*attend)(const headway_engine *, const headway_attention_params *,
                             const headway_tensor *, const headway_tensor *, const headway_tensor *,
                             const headway_tensor *, void *, size_t);
    headway_tensor (*dense)(void *, headway_dtype, int, const int64_t *);
    const int64_t shape[] = {1, TOKENS, HEADS, SIZE};
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;
    size_t bytes = 0;
    function(library, "headway_engine_create", &create, sizeof create);
    function(library, "headway_engine_destroy", &destroy, sizeof destroy);
    function(library, "headway_attention_workspace", &size, sizeof size);
    function(library, "headway_attention", &attend, sizeof attend);
    function(library, "headway_tensor_dense", &dense, sizeof dense);
    const headway_tensor in = dense(input, HEADWAY_F32, 4, shape);
    const headway_tensor to = dense(out, HEADWAY_F32, 4, shape);
    config.threads = 2;
    headway_status status = create(&config, &engine);
    if (status == HEADWAY_OK)
        status = size(engine, NULL, &in, &in, &in, &bytes);
    void *workspace = aligned_alloc(HEADWAY_WORKSPACE_ALIGNMENT, (bytes / 64 + 1) * 64);
    if (status == HEADWAY_OK)
        status = attend(engine, NULL, &in, &in, &in, &to, workspace, bytes);
    if (status != HEADWAY_OK)
        fail("a call of the loaded library");
    free(workspace);
    destroy(engine);
}

static void *load(const char *path)
{
    const unsigned long before = modes();
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    volatile float smallest = FLT_MIN;
    if (!library) {
        printf("FAIL %s\n", dlerror());
        exit(1);
    }
    if (modes() != before || smallest / 2 == 0.0f)
        fail("loading changes floating-point modes");
    return library;
}

/* A thread that has used the library and ends when it is no longer loaded. */
static sem_t used, unloaded;

static void *outlive(void *library)
{
    float *out = malloc(sizeof output);
    use(library, out);
    if (memcmp(out, expected, sizeof expected) != 0)
        fail("another thread: other bits");
    free(out);
    sem_post(&used);
    sem_wait(&unloaded);
    return host_storage;
}

static void unload_under(const char *path)
{
    pthread_t thread;
    void *library = load(path);
    sem_init(&used, 0, 0);
    sem_init(&unloaded, 0, 0);
    if (pthread_create(&thread, NULL, outlive, library) != 0)
        abort();
    sem_wait(&used);
    dlclose(library);
    sem_post(&unloaded);
    pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    for (int i = 0; i < COUNT; i++)
        input[i] = (float)(i * 37 % 101 - 50) / 50.0f;
    const unsigned long before = modes();
    for (int n = 0; n < LOADS; n++) {
        void *library = load(argv[1]);
        memset(output, 0, sizeof output);
        use(library, n ? output : expected);
        if (n && memcmp(output, expected, sizeof expected) != 0)
            fail("loaded again: other bits");
        dlclose(library);
    }
    unload_under(argv[1]);
    if (modes() != before)
        fail("floating-point modes changed");
    /* Threads that wait for work look around once more. */
    usleep(300 * 1000);
    printf("%d failures of %d loads\n", failures, LOADS + 1);
    return failures != 0;
}
