/* A wall clock that can be set for some processes: preloaded, it adds to the C library's real time
 * what a shared file says. Monotonic clocks are left alone, as setting a real clock leaves them.
 * Not covered: programs that ask the kernel themselves, and waits until a wall clock time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*clock_reader)(clockid_t, struct timespec *);

static int64_t step_s(void)
{
    static const volatile int64_t *shared;
    const char *path = getenv("WATCHTOWER_DRILL_CLOCK");
    if (!shared && path) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            void *page = mmap(NULL, sizeof *shared, PROT_READ, MAP_SHARED, file, 0);
            if (page != MAP_FAILED)
                shared = page;
            close(file);
        }
    }
    return shared ? *shared : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static clock_reader real;
    if (!real)
        real = (clock_reader)dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += step_s();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (seconds)
        *seconds = precise.tv_sec;
    return precise.tv_sec;
}
