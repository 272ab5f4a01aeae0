/* A member of a process group, linked statically, that writes a title over its environment. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void *run(void *unused)
{
    pthread_setname_np(pthread_self(), "pt_gloo_runloop");
    puts("ready");
    fflush(stdout);
    pause();
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char **last = environ;
    while (last[1])
        last++;
    memset(argv[0], 0, *last + strlen(*last) - argv[0]);
    strcpy(argv[0], "worker");
    pthread_create(&thread, NULL, run, NULL);
    pause();
    return argc;
}
