/* Waits as the driver of a device has them, and work, for libraries that a test names. */
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

void spin(void)
{
    struct timespec now;
    for (;;)
        clock_gettime(CLOCK_MONOTONIC, &now);
}

void spin_briefly(void)
{
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000000000L + now.tv_nsec - began.tv_nsec < 40000000L);
}

void do_yield(void)
{
    for (;;)
        sched_yield();
}

void sleep_in_condition(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (;;)
        pthread_cond_wait(&never, &lock);
}

double compute(void)
{
    volatile double sum = 0;
    for (;;)
        sum += sum * 0.5 + 1;
}

/* In state D until the child has read a byte from standard input. */
void block_until_input(void)
{
    if (vfork() == 0) {
        char byte;
        _exit(read(STDIN_FILENO, &byte, 1) != 1);
    }
}
