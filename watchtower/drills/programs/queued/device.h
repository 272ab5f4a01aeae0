/* What the stand-ins for libcuda, libtorch_cpu and the flight recorder share. */
#ifndef QUEUED_DEVICE_H
#define QUEUED_DEVICE_H

/* The part of CPython's stable ABI that is used here. Python.h is not needed. */
typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef struct {
    const char *name;
    void *function;
    int flags;
    const char *doc;
} PyMethodDef;

#define METH_VARARGS 0x0001
#define METH_KEYWORDS 0x0002
#define GIL_ENSURED int

PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);
PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
PyObject *PyTuple_GetItem(PyObject *, long);
PyObject *PyTuple_GetSlice(PyObject *, long, long);
PyThreadState *PyEval_SaveThread(void);
GIL_ENSURED PyGILState_Ensure(void);
long PyTuple_Size(PyObject *);
int PyObject_IsTrue(PyObject *);
void PyErr_Clear(void);
void PyEval_RestoreThread(PyThreadState *);
void PyGILState_Release(GIL_ENSURED);
void Py_DecRef(PyObject *);
void Py_IncRef(PyObject *);

/* Calls args[from](*args[from + 1:], **named). */
static inline PyObject *call_rest(PyObject *args, PyObject *named, long from)
{
    PyObject *rest = PyTuple_GetSlice(args, from + 1, PyTuple_Size(args));
    PyObject *result = PyObject_Call(PyTuple_GetItem(args, from), rest, named);
    Py_DecRef(rest);
    return result;
}

#endif
