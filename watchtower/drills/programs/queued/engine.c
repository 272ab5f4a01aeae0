/* libtorch_cpu.so: stands in for torch's autograd engine when it serves a device.
 *
 * Then a second thread, pt_autograd_0, launches the work of backward and waits for the device. The
 * thread that called backward sleeps here.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int is_wanted;
static void (*wait_for_device)(void);
static void (*delegate)(int);
static pid_t owner;

static void *serve(void *unused)
{
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!is_wanted)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        wait_for_device();
        pthread_mutex_lock(&lock);
        is_wanted = 0;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

void engine_open(void (*wait)(void), void (*delegate_launches)(int))
{
    pthread_t thread;
    wait_for_device = wait;
    delegate = delegate_launches;
    owner = getpid();
    if (pthread_create(&thread, NULL, serve, NULL) != 0) {
        perror("queued: pthread_create");
        abort();
    }
    pthread_setname_np(thread, "pt_autograd_0");
    pthread_detach(thread);
}

/* run_backward(function, *args): call it; then sleep until the other thread's launches fit. */
static PyObject *run_backward(PyObject *self, PyObject *args, PyObject *named)
{
    (void)self;
    delegate(1);
    PyObject *result = call_rest(args, named, 0);
    delegate(0);
    if (!result || getpid() != owner)
        return result;
    PyThreadState *state = PyEval_SaveThread();
    pthread_mutex_lock(&lock);
    is_wanted = 1;
    pthread_cond_broadcast(&changed);
    while (is_wanted)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    PyEval_RestoreThread(state);
    return result;
}

static PyMethodDef builtins[] = {{"run_backward", run_backward, METH_VARARGS | METH_KEYWORDS, NULL}};

PyObject *builtin(int index)
{
    return PyCFunction_NewEx(&builtins[index], NULL, NULL);
}
