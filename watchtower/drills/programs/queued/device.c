/* libcuda.so.1: stands in for the driver of an accelerator.
 *
 * Streams execute kernels and collectives in order, each in a thread of its own. A kernel only takes
 * time. A host thread that needs a result waits here, in native code, as CUDA's schedules say: it
 * spins, it yields, or it sleeps. A launch waits here too while too much work is queued.
 */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

#define MAX_STREAMS 64
#define SPINS 64 /* clock reads between two checks */
#define SHORTEST_NAP_NS 500000
#define LONGEST_NAP_NS 16000000
#define MOST_NAPS 2000 /* 1 s */

enum kind { KERNEL, WAIT, CALL };
enum schedule { SPIN, YIELD, SLEEP };

struct work {
    enum kind kind;
    double seconds; /* KERNEL; infinite for one that never ends */
    int other;      /* WAIT: stream and number */
    long number;
    PyObject *start; /* CALL: returns the work of gloo */
    int can_be_asked;
    struct work *next;
};

static struct stream {
    struct work *first, *last;
    long queued;
    atomic_long done;
} streams[MAX_STREAMS];

static atomic_int stream_count;
static atomic_long launched, finished;
static long depth = 6;
static int schedule = SPIN;
static int is_leaving, calling; /* Python's lock guards both; calling: threads inside gloo */
static pid_t owner;
static __thread int is_delegated; /* another thread waits for this one's launches */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static int is_done(int stream, long number)
{
    return atomic_load(&streams[stream].done) >= number;
}

static int has_room(int unused, long most)
{
    (void)unused;
    return atomic_load(&launched) - atomic_load(&finished) <= most;
}

/* Waits for a condition, as the schedule says. A forked child has no streams and does not wait. */
static void host_wait(int (*is_met)(int, long), int stream, long number)
{
    struct timespec now;
    if (getpid() != owner)
        return;
    if (schedule == SLEEP) {
        pthread_mutex_lock(&lock);
        while (!is_met(stream, number))
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        return;
    }
    while (!is_met(stream, number)) {
        if (schedule == YIELD)
            sched_yield();
        else
            for (int i = 0; i < SPINS; i++)
                clock_gettime(CLOCK_MONOTONIC, &now);
    }
}

/* Executes one kernel. */
static void execute(double seconds)
{
    struct timespec until;
    if (isinf(seconds))
        for (;;)
            pause();
    clock_gettime(CLOCK_MONOTONIC, &until);
    double ends = until.tv_sec + until.tv_nsec * 1e-9 + seconds;
    until.tv_sec = (time_t)ends;
    until.tv_nsec = (long)((ends - (double)until.tv_sec) * 1e9);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        ;
}

static void nap(long ns)
{
    struct timespec pause = {0, ns};
    nanosleep(&pause, NULL);
}

static int is_true(PyObject *work, const char *method)
{
    PyObject *answer = PyObject_CallMethod(work, method, NULL);
    int is = answer ? PyObject_IsTrue(answer) : 0;
    if (answer)
        Py_DecRef(answer);
    else
        PyErr_Clear();
    return is == 1;
}

/* Takes Python's lock to call gloo. It never returns once the process leaves: a thread that takes the
 * lock back inside gloo while Python ends would abort the process.
 */
static GIL_ENSURED enter_python(void)
{
    GIL_ENSURED state = PyGILState_Ensure();
    if (is_leaving) {
        PyGILState_Release(state);
        execute(INFINITY);
    }
    calling++;
    return state;
}

static void exit_python(GIL_ENSURED state)
{
    calling--;
    PyGILState_Release(state);
}

/* Executes one collective. If its transport fails, it never ends, as on a real device.
 *
 * It asks for the end again and again, so that it stays in gloo only for moments. Some calls of gloo
 * cannot be asked; device_leave does not wait for these.
 */
static void communicate(PyObject *start, int can_be_asked)
{
    long ns = SHORTEST_NAP_NS;
    GIL_ENSURED state = enter_python();
    PyObject *work = PyObject_CallFunctionObjArgs(start, NULL);
    while (work && can_be_asked && !is_true(work, "is_completed")) {
        exit_python(state);
        nap(ns);
        ns = ns < LONGEST_NAP_NS ? 2 * ns : ns;
        state = enter_python();
    }
    calling -= !can_be_asked;
    PyObject *over = work ? PyObject_CallMethod(work, "wait", NULL) : NULL;
    if (!over)
        PyErr_Clear();
    else {
        Py_DecRef(over);
        Py_DecRef(work);
        Py_DecRef(start);
    }
    calling += !can_be_asked;
    exit_python(state);
    if (!over)
        execute(INFINITY);
}

static void *run_stream(void *argument)
{
    struct stream *stream = argument;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!stream->first)
            pthread_cond_wait(&changed, &lock);
        struct work *work = stream->first;
        if (work->kind == WAIT)
            while (!is_done(work->other, work->number))
                pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        if (work->kind == KERNEL)
            execute(work->seconds);
        if (work->start)
            communicate(work->start, work->can_be_asked);
        pthread_mutex_lock(&lock);
        stream->first = work->next;
        atomic_fetch_add(&stream->done, 1);
        if (work->kind != WAIT)
            atomic_fetch_add(&finished, 1);
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        free(work);
    }
    return NULL;
}

/* Uses only idle time of a processor: SCHED_IDLE. */
static void *spin_beside(void *unused)
{
    struct sched_param none = {0};
    sched_setscheduler(0, SCHED_IDLE, &none);
    for (;;)
        sched_yield();
    return unused;
}

static void start_thread(const char *name, void *(*run)(void *), void *argument)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument) != 0) {
        perror("queued: pthread_create");
        abort();
    }
    pthread_setname_np(thread, name);
    pthread_detach(thread);
}

static long push(int stream, struct work work)
{
    struct work *copy = malloc(sizeof(work));
    if (!copy)
        abort();
    *copy = work;
    pthread_mutex_lock(&lock);
    if (streams[stream].first)
        streams[stream].last->next = copy;
    else
        streams[stream].first = copy;
    streams[stream].last = copy;
    long number = ++streams[stream].queued;
    if (work.kind != WAIT)
        atomic_fetch_add(&launched, 1);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return number;
}

/* What Python calls through ctypes. Stream 0 is the compute stream. */

void device_open(int how, long most, int with_helper)
{
    schedule = how;
    depth = most;
    owner = getpid();
    if (with_helper)
        start_thread("NCCL Progress", spin_beside, NULL);
}

/* Keeps the streams out of Python from now on. The caller holds Python's lock. */
void device_leave(void)
{
    is_leaving = 1;
    for (int tries = 0; calling > 0 && tries < MOST_NAPS; tries++) {
        PyThreadState *state = PyEval_SaveThread();
        nap(SHORTEST_NAP_NS);
        PyEval_RestoreThread(state);
    }
}

int stream_open(void)
{
    int stream = atomic_fetch_add(&stream_count, 1);
    if (stream >= MAX_STREAMS)
        abort();
    start_thread("queued stream", run_stream, &streams[stream]);
    return stream;
}

long stream_launch(int stream, double seconds)
{
    return push(stream, (struct work){.kind = KERNEL, .seconds = seconds});
}

long stream_await(int stream, int other, long number)
{
    return push(stream, (struct work){.kind = WAIT, .other = other, .number = number});
}

long stream_call(int stream, PyObject *start, int can_be_asked)
{
    Py_IncRef(start);
    return push(stream, (struct work){.kind = CALL, .start = start, .can_be_asked = can_be_asked});
}

long stream_end(int stream)
{
    return streams[stream].queued;
}

int stream_is_done(int stream, long number)
{
    return is_done(stream, number);
}

void host_delegate(int delegated)
{
    is_delegated = delegated;
}

void host_wait_for_room(void)
{
    host_wait(has_room, 0, depth);
}

/* Builtins: Python sees them without a frame of their own. */

static void wait_without_gil(int (*is_met)(int, long), int stream, long number)
{
    if (is_met(stream, number))
        return;
    PyThreadState *state = PyEval_SaveThread();
    host_wait(is_met, stream, number);
    PyEval_RestoreThread(state);
}

/* with_room(function, *args): call it; then wait while the queue is full. */
static PyObject *with_room(PyObject *self, PyObject *args, PyObject *named)
{
    (void)self;
    PyObject *result = call_rest(args, named, 0);
    if (result && !is_delegated)
        wait_without_gil(has_room, 0, depth);
    return result;
}

/* after_device(deliver, function, *args): wait for the compute stream, then call both. */
static PyObject *after_device(PyObject *self, PyObject *args, PyObject *named)
{
    (void)self;
    wait_without_gil(is_done, 0, streams[0].queued);
    PyObject *delivered = PyObject_CallFunctionObjArgs(PyTuple_GetItem(args, 0), NULL);
    if (!delivered)
        return NULL;
    Py_DecRef(delivered);
    return call_rest(args, named, 1);
}

static PyMethodDef builtins[] = {
    {"with_room", with_room, METH_VARARGS | METH_KEYWORDS, NULL},
    {"after_device", after_device, METH_VARARGS | METH_KEYWORDS, NULL},
};

PyObject *builtin(int index)
{
    return PyCFunction_NewEx(&builtins[index], NULL, NULL);
}
