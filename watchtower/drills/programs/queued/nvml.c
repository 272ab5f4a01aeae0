/* A stand-in for libnvidia-ml.so.1: the functions that the agent calls, with values from a script.
 *
 * SCRIPT is the path of the script. It is read again when it has changed, so that a test can change the
 * GPUs while the agent runs. Each line is "key gpu value". Keys are the names of values, and also:
 *   count       number of GPUs (gpu is 0)
 *   pid         a process that uses the GPU; several lines name several
 *   field.N     value of field N of nvmlDeviceGetFieldValues
 *   xid         an Xid error, reported once
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

static struct line {
    char key[64];
    int gpu;
    double value;
} lines[MAX_LINES];
static int line_count;
static struct timespec read_of; /* modification time of the script that `lines` is from */
static ino_t inode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Reads the script if it has changed. The caller holds the lock. */
static void read_script(void) {
    struct stat now;
    char text[128];
    FILE *file;
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
    usleep((useconds_t)(1e6 * find(key, gpu, 0)));
    snprintf(key, sizeof key, "rc.%s", name);
    return (Result)find(key, gpu, find("rc", gpu, 0));
}

static int number_of(Device device) { return (int)(long)device - 1; }

#define BEGIN(name)                                    \
    int gpu = number_of(device);                       \
    Result result = begin(name, gpu);                  \
    if (result) return result

Result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return begin("init", 0);
}
Result nvmlInit_v2(void) { return begin("init", 0); }
Result nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(Result result) {
    (void)result;
    return "an error of the stand-in";
}
Result nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "999.1");
    return 0;
}
Result nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)find("count", 0, 2);
    return 0;
}
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    *device = (Device)(long)(index + 1);
    return begin("handle", (int)index);
}
Result nvmlDeviceGetUUID(Device device, char *text, unsigned length) {
    snprintf(text, length, "GPU-%d", number_of(device));
    return 0;
}
Result nvmlDeviceGetName(Device device, char *text, unsigned length) {
    (void)device;
    snprintf(text, length, "Stand-in 3000");
    return 0;
}

struct Pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};
Result nvmlDeviceGetPciInfo_v3(Device device, struct Pci *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3a + number_of(device));
    return 0;
}

struct Utilization {
    unsigned gpu, memory;
};
Result nvmlDeviceGetUtilizationRates(Device device, struct Utilization *used) {
    BEGIN("utilization");
    used->gpu = (unsigned)find("utilization", gpu, 0);
    used->memory = (unsigned)find("memory_utilization", gpu, 0);
    return 0;
}
Result nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
    BEGIN("power");
    *milliwatts = (unsigned)(1000 * find("power", gpu, 70));
    return 0;
}
Result nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts) {
    BEGIN("limit");
    *milliwatts = (unsigned)(1000 * find("limit", gpu, 700));
    return 0;
}
Result nvmlDeviceGetClockInfo(Device device, int type, unsigned *mhz) {
    BEGIN("clock");
    (void)type;
    *mhz = (unsigned)find("clock", gpu, 1500);
    return 0;
}
#ifndef OLD_DRIVER
Result nvmlDeviceGetCurrentClocksEventReasons(Device device, U64 *reasons) {
    BEGIN("reasons");
    *reasons = (U64)find("reasons", gpu, 0);
    return 0;
}
Result nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected,
                                 unsigned *pending, unsigned *failed) {
    BEGIN("rows");
    *corrected = (unsigned)find("remapped_corrected", gpu, 0);
    *uncorrected = (unsigned)find("remapped_uncorrected", gpu, 0);
    *pending = (unsigned)find("remap_pending", gpu, 0);
    *failed = (unsigned)find("remap_failed", gpu, 0);
    return 0;
}
#endif

#ifndef OLD_DRIVER
struct Support {
    unsigned version, is_supported;
};
Result nvmlGpmQueryDeviceSupport(Device device, struct Support *support) {
    BEGIN("gpm");
    support->is_supported = find("tensor", gpu, -1) >= 0;
    return 0;
}
struct Sample {
    int gpu;
};
Result nvmlGpmSampleAlloc(struct Sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return 0;
}
Result nvmlGpmSampleGet(Device device, struct Sample *sample) {
    BEGIN("gpm");
    sample->gpu = gpu;
    return 0;
}
struct Metric {
    unsigned id;
    Result result;
    double value;
    void *names[3];
};
struct Metrics {
    unsigned version, count;
    struct Sample *before, *now;
    struct Metric metrics[];
};
Result nvmlGpmMetricsGet(struct Metrics *wanted) {
    for (unsigned n = 0; n < wanted->count; n++) {
        struct Metric *metric = &wanted->metrics[n];
        const char *key = metric->id == 5 ? "tensor" : metric->id == 10 ? "dram" : "";
        metric->value = find(key, wanted->now->gpu, -1);
        metric->result = metric->value < 0 ? 3 : 0;
    }
    return 0;
}
#endif

#ifndef OLD_DRIVER
Result nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *pending) {
    BEGIN("mig");
    *now = *pending = (unsigned)find("mig", gpu, 0);
    return 0;
}
Result nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *lanes) {
    BEGIN("width");
    *lanes = (unsigned)find("width", gpu, 16);
    return 0;
}
Result nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *lanes) {
    BEGIN("width");
    *lanes = 16;
    return 0;
}

struct Event {
    Device device;
    U64 type, data;
    unsigned gpu_instance, compute_instance;
};
Result nvmlEventSetCreate(void **events) {
    *events = (void *)1;
    return begin("events", 0);
}
Result nvmlDeviceGetSupportedEventTypes(Device device, U64 *types) {
    (void)device;
    *types = 8;
    return 0;
}
Result nvmlDeviceRegisterEvents(Device device, U64 types, void *events) {
    (void)device, (void)types, (void)events;
    return 0;
}
/* Returns each number of the key "xid" once. */
Result nvmlEventSetWait_v2(void *events, struct Event *event, unsigned milliseconds) {
    static double told[32];
    (void)events;
    for (unsigned waited = 0; waited < milliseconds; waited += 50) {
        for (int gpu = 0; gpu < 32; gpu++) {
            double xid = find("xid", gpu, 0);
            if (xid && xid != told[gpu]) {
                memset(event, 0, sizeof *event);
                told[gpu] = event->data = (U64)xid;
                event->device = (Device)(long)(gpu + 1);
                event->type = 8;
                return 0;
            }
        }
        usleep(50000);
    }
    return 10;
}
#endif

struct Memory {
    U64 total, free, used;
};
Result nvmlDeviceGetMemoryInfo(Device device, struct Memory *memory) {
    BEGIN("memory");
    memory->total = (U64)80 << 30;
    memory->used = (U64)find("memory_used", gpu, 1e9);
    memory->free = memory->total - memory->used;
    return 0;
}
Result nvmlDeviceGetTemperature(Device device, int sensor, unsigned *celsius) {
    BEGIN("temperature");
    (void)sensor;
    *celsius = (unsigned)find("temperature", gpu, 40);
    return 0;
}
Result nvmlDeviceGetTotalEnergyConsumption(Device device, U64 *millijoules) {
    BEGIN("energy");
    *millijoules = (U64)find("energy", gpu, 5e6);
    return 0;
}

struct Process {
    unsigned pid;
    U64 used;
    unsigned gpu_instance, compute_instance;
};
Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count,
                                               struct Process *found) {
    unsigned many = 0, most = *count;
    BEGIN("processes");
    pthread_mutex_lock(&lock);
    for (int n = 0; n < line_count; n++) {
        if (lines[n].gpu != gpu || strcmp(lines[n].key, "pid")) continue;
        if (many < most) {
            memset(&found[many], 0, sizeof found[many]);
            found[many].pid = (unsigned)lines[n].value;
            found[many].used = (U64)1 << 30;
        }
        many++;
    }
    pthread_mutex_unlock(&lock);
    *count = many;
    return many > most ? 7 : 0;
}

struct Field {
    unsigned id, scope;
    long long at, latency;
    int type;
    Result result;
    U64 value;
};
Result nvmlDeviceGetFieldValues(Device device, int count, struct Field *fields) {
    char key[32];
    BEGIN("fields");
    for (int n = 0; n < count; n++) {
        snprintf(key, sizeof key, "field.%u", fields[n].id);
        double value = find(key, gpu, -1);
        fields[n].at = fields[n].latency = 0;
        fields[n].type = 3;
        fields[n].result = value < 0 ? 3 : 0;
        fields[n].value = value < 0 ? 0 : (U64)value;
    }
    return 0;
}
