/* A trainer in C that shows its progress on a heartbeat page: the example of docs/heartbeat-page.md,
 * written from nothing but that document. Take the functions; main() obeys the tests.
 *
 *     cc -std=c11 -O2 trainer.c -o trainer
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

enum { PAGE_SIZE = 4096, VERSION = 1 };

/* Offsets in bytes, from the table "Fields". */
enum {
    STEP = 64, TIME_NS = 72, STEP_BEGUN = 80,
    COLD_DONE = 128, PID = 136, START_TIME_TICKS = 144, RANK = 152, WORLD_SIZE = 160,
    LOCAL_RANK = 168, PHASE_SINCE_NS = 176, NONFINITE_LOSSES = 184, FIRST_NONFINITE_STEP = 192,
    LAST_NONFINITE_STEP = 200, ENDED = 208, ENDED_NS = 216, EXIT_CODE = 224,
    JOB = 512, JOB_SIZE = 256, PHASE = 768, PHASE_SIZE = 64,
    COLD_BEGUN = 4088
};

/* NULL until there is a page, and for ever when there can be none: training goes on without. */
static char *page;

static _Atomic int64_t *word(int offset)
{
    return (_Atomic int64_t *)(page + offset);
}

static void store(int offset, int64_t value)
{
    atomic_store_explicit(word(offset), value, memory_order_relaxed);
}

static int64_t load(int offset)
{
    return atomic_load_explicit(word(offset), memory_order_relaxed);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Text is cut to leave a NUL; a caller with longer names cuts them between two characters. */
static void store_text(int offset, int size, const char *text)
{
    memset(page + offset, 0, size);
    memcpy(page + offset, text, strnlen(text, size - 1));
}

static void begin_cold_write(void)
{
    store(COLD_BEGUN, load(COLD_BEGUN) + 1);
    atomic_thread_fence(memory_order_release);
}

static void end_cold_write(void)
{
    atomic_store_explicit(word(COLD_DONE), load(COLD_BEGUN), memory_order_release);
}

static void beat(int64_t step)
{
    if (!page)
        return;
    store(STEP_BEGUN, step);
    atomic_thread_fence(memory_order_release);
    store(TIME_NS, now_ns());
    atomic_store_explicit(word(STEP), step, memory_order_release);
}

/* "" ends the phase. */
static void phase(const char *name)
{
    if (!page)
        return;
    begin_cold_write();
    store_text(PHASE, PHASE_SIZE, name);
    store(PHASE_SINCE_NS, *name ? now_ns() : 0);
    end_cold_write();
}

static void check_loss(int64_t step, double loss)
{
    if (!page || isfinite(loss))
        return;
    begin_cold_write();
    if (load(NONFINITE_LOSSES) == 0)
        store(FIRST_NONFINITE_STEP, step);
    store(LAST_NONFINITE_STEP, step);
    store(NONFINITE_LOSSES, load(NONFINITE_LOSSES) + 1);
    end_cold_write();
}

static void note_end(int64_t ended, int64_t code)
{
    if (!page)
        return;
    begin_cold_write();
    store(ENDED, ended);
    store(ENDED_NS, now_ns());
    store(EXIT_CODE, code);
    end_cold_write();
}

/* Field 22 of /proc/self/stat: the name, field 2, may hold anything, so count from its last ")". */
static int64_t read_start_time(void)
{
    char text[1024];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return -1;
    text[length] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoll(at, NULL, 10) : -1;
}

static int64_t number_from(const char *variable)
{
    const char *text = getenv(variable);
    return text && *text ? strtoll(text, NULL, 10) : -1;
}

static void put(char *image, int offset, int64_t value)
{
    memcpy(image + offset, &value, sizeof value);
}

static void fill(char *image)
{
    memcpy(image, "WTHBEAT", 8);
    put(image, 8, VERSION);
    put(image, 16, PAGE_SIZE);
    put(image, STEP, -1);
    put(image, STEP_BEGUN, -1);
    put(image, FIRST_NONFINITE_STEP, -1);
    put(image, LAST_NONFINITE_STEP, -1);
    put(image, EXIT_CODE, -1);
    put(image, PID, getpid());
    put(image, START_TIME_TICKS, read_start_time());
    put(image, RANK, number_from("RANK"));
    put(image, WORLD_SIZE, number_from("WORLD_SIZE"));
    put(image, LOCAL_RANK, number_from("LOCAL_RANK"));
    const char *job = getenv("WATCHTOWER_JOB");
    if (job)
        memcpy(image + JOB, job, strnlen(job, JOB_SIZE - 1));
}

static void make_page(void)
{
    static char image[PAGE_SIZE];
    int file = memfd_create("watchtower-heartbeat", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (file < 0) /* before Linux 6.3 */
        file = memfd_create("watchtower-heartbeat", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return;
    fill(image);
    if (write(file, image, PAGE_SIZE) != PAGE_SIZE) {
        close(file);
        return;
    }
    fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    void *memory = mmap(NULL, PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        close(file);
    else
        page = memory; /* and the descriptor stays open: it is how the page is found */
}

static int exit_code;

/* Lines: "beat 5", "phase eval", "phase", "loss 5 nan", "end 3 7" (ended, exit code). */
static void obey(char *line)
{
    char *verb = strtok(line, " \n"), *first = strtok(NULL, " \n"), *second = strtok(NULL, " \n");
    if (!verb)
        return;
    if (!strcmp(verb, "beat") && first)
        beat(atoll(first));
    else if (!strcmp(verb, "phase"))
        phase(first ? first : "");
    else if (!strcmp(verb, "loss") && second)
        check_loss(atoll(first), atof(second));
    else if (!strcmp(verb, "end") && second)
        note_end(atoll(first), exit_code = atoi(second));
}

int main(void)
{
    char line[512];
    make_page();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        obey(line);
        puts("done");
        fflush(stdout);
    }
    return exit_code;
}
