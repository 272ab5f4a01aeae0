/* A stand-in for libnvidia-ml.so.1: the functions that the agent calls, with values from a script
 * (nvml_script.h). */
#include "nvml_script.h"

/* Microseconds since the counters of a GPU stand still; the time of now if they do not. */
static U64 counted_us(int gpu) {
    static U64 stopped_us[32];
    U64 *at = &stopped_us[gpu & 31];
    if (!find("frozen", gpu, 0)) return *at = 0, now_us();
    return *at ? *at : (*at = now_us());
}

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
    support->is_supported = find("has_units", gpu, 1) != 0;
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
        const char *key = metric->id == 2    ? "sm"
                          : metric->id == 5  ? "tensor"
                          : metric->id == 10 ? "dram"
                          : metric->id == 60 ? "received"
                          : metric->id == 61 ? "sent"
                                             : "";
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
Result nvmlDeviceGetPersistenceMode(Device device, int *mode) {
    BEGIN("persistence");
    *mode = (int)find("persistence", gpu, 1);
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

#define SAMPLES 6 /* a second */
struct Sample_ {
    U64 at, value;
};
/* The newest samples after `last`: the driver takes them six times a second. */
Result nvmlDeviceGetSamples(Device device, int type, U64 last, int *value_type, unsigned *count,
                            struct Sample_ *samples) {
    BEGIN("samples");
    U64 newest = counted_us(gpu) / (1000000 / SAMPLES) * (1000000 / SAMPLES);
    (void)type;
    *value_type = 1;
    if (newest <= last) return 6;
    if (samples) samples[0].at = newest, samples[0].value = (U64)find("utilization", gpu, 0);
    *count = 1;
    return 0;
}
Result nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *is_up) {
    BEGIN("link");
    if (link >= (unsigned)find("links", gpu, 0)) return 2;
    *is_up = link < (unsigned)find("links_up", gpu, find("links", gpu, 0));
    return 0;
}
struct Fabric {
    unsigned version;
    unsigned char cluster[16];
    Result status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
    unsigned char health; /* since version 3 */
};
Result nvmlDeviceGetGpuFabricInfoV(Device device, struct Fabric *fabric) {
    BEGIN("fabric");
    if (fabric->version != (unsigned)find("fabric_version", gpu, 0x3000028)) return 25;
    fabric->status = (Result)find("fabric_status", gpu, 0);
    fabric->state = (unsigned char)find("fabric_state", gpu, 0);
    if (fabric->version >> 24 == 3) fabric->health = (unsigned char)find("fabric_health", gpu, 0);
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
#define WAIT_MS 500 /* reading the script wakes the reader up, which a real wait in the driver does not */
static double told[32]; /* the last Xid of each GPU that was returned */

/* Finds an Xid that was not returned yet. Returns the number of its GPU, or -1. */
static int find_xid(U64 *xid) {
    int found = -1;
    pthread_mutex_lock(&lock);
    read_script();
    for (int n = 0; n < line_count; n++) {
        int gpu = lines[n].gpu & 31;
        if (strcmp(lines[n].key, "xid") || lines[n].value == told[gpu]) continue;
        told[gpu] = lines[n].value;
        *xid = (U64)lines[n].value;
        found = gpu;
        break;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
Result nvmlEventSetWait_v2(void *events, struct Event *event, unsigned milliseconds) {
    (void)events;
    for (unsigned waited = 0; waited < milliseconds; waited += WAIT_MS) {
        U64 xid = 0;
        int gpu = find_xid(&xid);
        if (gpu >= 0) {
            memset(event, 0, sizeof *event);
            event->data = xid;
            event->device = (Device)(long)(gpu + 1);
            event->type = 8;
            return 0;
        }
        usleep(1000 * WAIT_MS);
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
    *millijoules = (U64)(find("energy", gpu, 5e6) + find("power", gpu, 70) * (double)counted_us(gpu) / 1e3);
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
        if (fields[n].id == 91) value = find("links", gpu, value);
        if (fields[n].id == 165 && find("has_link_fields", gpu, 1) && fields[n].scope < find("links", gpu, 0))
            value = fields[n].scope < find("links_up", gpu, find("links", gpu, 0));
        fields[n].at = fields[n].latency = 0;
        fields[n].type = 3;
        fields[n].result = value < 0 ? 3 : 0;
        fields[n].value = value < 0 ? 0 : (U64)value;
    }
    return 0;
}
