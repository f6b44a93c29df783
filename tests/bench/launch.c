/* What a launcher has taken by the time of the first allreduce: the time since its start, and then, by host, the memory of its
 * processes (PSS) and the connections of TCP that are open, those of ssh among them. */
#include <ctype.h>
#include <dirent.h>

#include "bench.h"

/* The processes of launchers and their agents, as the kernel cuts names. */
static const char *const names[] = {"mpirun",        "mpiexec",         "mpiexec.hydra", "banyan-agent",
                                    "hydra_pmi_prox", "hydra_pmi_proxy", "prterun",       "prted"};

/* The name of a process; its parent and its start, in ticks since the machine's. False if it is gone. */
static int process(long pid, char name[64], long *parent, double *start)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    unsigned long long ticks = 0;
    if (open == NULL || close == NULL)
        return 0;
    snprintf(name, 64, "%.*s", (int)(close - open - 1), open + 1);
    sscanf(close + 2,
           "%*c %ld %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", parent, &ticks);
    *start = (double)ticks;
    return 1;
}

static int is_launcher(const char *name)
{
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (strcmp(name, names[at]) == 0)
            return 1;
    return 0;
}

/* Milliseconds since the first of this process's ancestors that is a launcher was started. */
static double since_start(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec, start = 0, first = 0;
    char name[64];
    long parent = 0;
    for (long pid = getppid(); pid > 1 && process(pid, name, &parent, &start); pid = parent)
        if (is_launcher(name))
            first = start;
    return first > 0 ? 1e3 * (now - first / (double)sysconf(_SC_CLK_TCK)) : 0;
}

/* The memory of all processes of launchers on this host. */
static double launchers_mb(void)
{
    double all = 0, start;
    char name[64];
    long parent;
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        long pid = isdigit((unsigned char)entry->d_name[0]) ? atol(entry->d_name) : 0;
        if (pid > 0 && process(pid, name, &parent, &start) && is_launcher(name))
            all += pss_mb(entry->d_name);
    }
    if (folder != NULL)
        closedir(folder);
    return all;
}

/* Ends of connections that are open on this host. */
static double connections(void)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    double all = 0;
    for (int at = 0; at < 2; at++) {
        char line[512];
        unsigned state;
        FILE *file = fopen(tables[at], "r");
        while (file != NULL && fgets(line, sizeof line, file) != NULL)
            all += sscanf(line, "%*d: %*s %*s %x", &state) == 1 && state == 1;
        if (file != NULL)
            fclose(file);
    }
    return all;
}

static void tell(const char *name, double value, const char *unit, int wrong)
{
    begin_cell("%s", name);
    end_cell(value, unit, wrong);
}

int main(int argc, char **argv)
{
    int one = 1, sum = 0, local;
    MPI_Comm host;
    bench_init(&argc, &argv);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    double time = since_start();
    /* Before more ranks connect to each other than have to. */
    double ends = connections(), memory = launchers_mb();
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local);
    double here[3] = {local == 0 ? ends / 2 : 0, local == 0 && rank > 0 ? memory : 0, local == 0 && rank > 0};
    double all[3] = {0, 0, 0};
    MPI_Allreduce(here, all, 3, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    tell("first-allreduce", rank == 0 ? time : 0, "ms", sum != ranks || (rank == 0 && time <= 0));
    tell("agent-pss", all[2] > 0 ? all[1] / all[2] : memory, "MB", memory <= 0);
    tell("mpirun-pss", rank == 0 ? memory : 0, "MB", 0);
    tell("connections", all[0], "all", 0);
    MPI_Comm_free(&host);
    MPI_Finalize();
    return 0;
}
