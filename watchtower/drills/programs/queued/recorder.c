/* Stands in for NCCL's flight recorder and for the server that answers with it.
 *
 * An entry is "scheduled" when it is queued. Only the watchdog thread sets "completed", up to a tenth
 * of a second after the device has finished. No entry is ever "started": NCCL knows that only with
 * timing on.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RING 2000 /* torch's default */
#define WATCHDOG_NS 100000000

static struct entry {
    char *text; /* the start of its JSON object; freed when it is overwritten */
    int stream;
    long number;
    int completed;
} ring[RING];

static long count;
static char *groups; /* JSON of pg_config */
static int (*is_done)(int, long);
static int listener;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static long oldest(void)
{
    return count > RING ? count - RING : 0;
}

static void *watch(void *unused)
{
    struct timespec pause = {0, WATCHDOG_NS};
    for (;;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        for (long at = oldest(); at < count; at++) {
            struct entry *entry = &ring[at % RING];
            if (!entry->completed)
                entry->completed = is_done(entry->stream, entry->number);
        }
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static void write_log(FILE *out)
{
    pthread_mutex_lock(&lock);
    fprintf(out, "{\"version\":\"2.10\",\"pg_config\":%s,\"pg_status\":{},\"entries\":[",
            groups ? groups : "{}");
    for (long at = oldest(); at < count; at++) {
        struct entry *entry = &ring[at % RING];
        fprintf(out, "%s%s,\"state\":\"%s\",\"retired\":%s}", at > oldest() ? "," : "", entry->text,
                entry->completed ? "completed" : "scheduled", entry->completed ? "true" : "false");
    }
    fprintf(out, "]}");
    pthread_mutex_unlock(&lock);
}

static void answer(int connection)
{
    char request[4096] = "";
    size_t length = 0;
    while (length < sizeof(request) - 1 && !strstr(request, "\r\n\r\n")) {
        ssize_t got = read(connection, request + length, sizeof(request) - 1 - length);
        if (got <= 0)
            return;
        length += (size_t)got;
        request[length] = 0;
    }
    char *body = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&body, &size);
    if (strncmp(request, "POST /handler/dump_nccl_trace_json ", 35) == 0)
        write_log(out);
    else
        fprintf(out, "{\"version\":\"2.10\",\"pg_config\":{},\"pg_status\":{},\"entries\":[]}");
    fclose(out);
    dprintf(connection, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", size);
    for (size_t sent = 0; sent < size;) {
        ssize_t wrote = send(connection, body + sent, size - sent, MSG_NOSIGNAL);
        if (wrote <= 0)
            break;
        sent += (size_t)wrote;
    }
    free(body);
}

static void *serve(void *unused)
{
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0)
            continue;
        answer(connection);
        close(connection);
    }
    return unused;
}

static void start_thread(const char *name, void *(*run)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) != 0) {
        perror("queued: pthread_create");
        abort();
    }
    pthread_setname_np(thread, name);
    pthread_detach(thread);
}

/* What Python calls through ctypes. */

void recorder_open(int (*done)(int, long))
{
    is_done = done;
    start_thread("pt_nccl_watchdg", watch);
}

/* Answers requests on a Unix socket at this path; -1 if it cannot listen there. */
int recorder_serve(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(listener, 16) != 0)
        return -1;
    start_thread("pt_worker_srv", serve);
    return 0;
}

void recorder_name_groups(const char *text)
{
    pthread_mutex_lock(&lock);
    free(groups);
    groups = strdup(text);
    pthread_mutex_unlock(&lock);
}

/* Returns the number of the next entry. */
long recorder_count(void)
{
    return count;
}

void recorder_add(const char *text, int stream, long number)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = &ring[count++ % RING];
    free(entry->text);
    *entry = (struct entry){.text = strdup(text), .stream = stream, .number = number};
    pthread_mutex_unlock(&lock);
}
