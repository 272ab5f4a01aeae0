/* The script of the stand-in for libnvidia-ml.so.1: values of GPUs, which a test may change at any time.
 *
 * SCRIPT is its path. Each line is "key gpu value". Keys are the names of values, and also:
 *   count       number of GPUs (gpu is 0)
 *   pid         a process that uses the GPU; several lines name several
 *   field.N     value of field N of nvmlDeviceGetFieldValues
 *   links       number of NVLinks, and links_up: how many of them are up
 *   has_units   0: a GPU before Hopper, without counters of its units
 *   xid         an Xid error, reported once
 *   frozen      1: the energy and the samples of the GPU stand still
 *   delay.NAME  seconds that this call takes
 *   rc          error code of all calls of a GPU
 *   rc.NAME     error code of one call, such as "rc.power"; "rc.init" is that of nvmlInit
 *   hang.NAME   this call does not return if the value is not 0; "hang.all": no call does
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef void *Device;
typedef unsigned long long U64;

#define MAX_LINES 512
#define CHECK_US 20000 /* a change of the script is seen this late: checking each value costs more than reading it */

static struct line {
    char key[64];
    int gpu;
    double value;
} lines[MAX_LINES];
static int line_count;
static struct timespec read_of; /* modification time of the script that `lines` is from */
static ino_t inode;
static U64 checked_us;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static U64 now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (U64)now.tv_sec * 1000000 + (U64)now.tv_nsec / 1000;
}

/* Reads the script if it has changed. The caller holds the lock. */
static void read_script(void) {
    struct stat now;
    char text[128];
    FILE *file;
    U64 at = now_us();
    if (checked_us && at - checked_us < CHECK_US) return;
    checked_us = at;
    if (stat(SCRIPT, &now) || (now.st_ino == inode && now.st_mtim.tv_sec == read_of.tv_sec
                               && now.st_mtim.tv_nsec == read_of.tv_nsec))
        return;
    if (!(file = fopen(SCRIPT, "r"))) return;
    inode = now.st_ino;
    read_of = now.st_mtim;
    line_count = 0;
    while (line_count < MAX_LINES && fgets(text, sizeof text, file)) {
        struct line *line = &lines[line_count];
        if (sscanf(text, "%63s %d %lf", line->key, &line->gpu, &line->value) == 3) line_count++;
    }
    fclose(file);
}

static double find(const char *key, int gpu, double otherwise) {
    double found = otherwise;
    pthread_mutex_lock(&lock);
    read_script();
    for (int n = 0; n < line_count; n++)
        if (lines[n].gpu == gpu && !strcmp(lines[n].key, key)) found = lines[n].value;
    pthread_mutex_unlock(&lock);
    return found;
}

static Result begin(const char *name, int gpu) {
    char key[64];
    snprintf(key, sizeof key, "hang.%s", name);
    if (find(key, gpu, 0) || find("hang.all", gpu, 0))
        for (;;) pause();
    snprintf(key, sizeof key, "delay.%s", name);
    double delay_s = find(key, gpu, 0);
    if (delay_s > 0) usleep((useconds_t)(1e6 * delay_s)); /* also a sleep of 0 s gives up the CPU */
    snprintf(key, sizeof key, "rc.%s", name);
    return (Result)find(key, gpu, find("rc", gpu, 0));
}

static int number_of(Device device) { return (int)(long)device - 1; }

#define BEGIN(name)                                    \
    int gpu = number_of(device);                       \
    Result result = begin(name, gpu);                  \
    if (result) return result
