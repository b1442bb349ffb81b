/* Runs a program, notes every call with which it touches a directory, and meddles with one of them.
 *
 *   meddle --watch DIR [--ack FILE] [--log FILE] [--data FILE] [--fault CLASS:N:ANSWER] -- PROGRAM ...
 *
 * A seccomp filter stops the program, its threads and children at the calls in CALLS; those that
 * touch DIR or FILE (by path or by descriptor) are counted and noted in the order in which they
 * return, with the bytes written. The N-th call of a CLASS ("any": of all) gets ANSWER instead:
 *   kill     SIGKILL to all processes before the call is made
 *   a number the call is not made and fails with that errno (close: is made, and fails all the same)
 *   short    a read or write gets half of its length; zero: is not made and answers 0
 * Counting begins with the program's first touch of DIR, so loaders and interpreters do not matter.
 *
 * The log has a line a call, fields separated by tabs:
 *   number class call result inode offset len_bytes descriptor_flags data_at path path2
 * data_at: where in the data file the bytes of a write begin, -1 without. Further lines: "unseen", a
 * way to write that this program does not follow (a shared mapping); "outside", a file created
 * elsewhere; "left", a process that outlived the program; at the end "end", status, 1 if the fault struck.
 * io_uring is answered with ENOSYS, so that programs fall back to calls that can be seen.
 * Exit status: the program's own, 128 + signal when one ended it, 125 when this program failed.
 *
 * x86-64 and 64-bit Arm, Linux 5.3 or newer. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined __x86_64__
#define NATIVE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "only x86-64 and 64-bit Arm"
#endif

/* What PTRACE_GET_SYSCALL_INFO (Linux 5.3) tells; C libraries disagree on the name of the structure. */
enum { INFO_EXIT = 2, INFO_SECCOMP = 3 };
static const enum __ptrace_request GET_CALL = (enum __ptrace_request)0x420e;
typedef struct {
    uint8_t op, pad[3];
    uint32_t arch;
    uint64_t pc, sp;
    union {
        struct { uint64_t nr, args[6]; uint32_t data; } seccomp;
        struct { int64_t result; uint8_t is_error; } exit;
    };
} Info;

enum { OPEN, WRITE, SIZE, SYNC, CLOSE, NAME, READ, ACK, ANY, CLASSES };
static const char *const CLASS[] = {"open", "write", "size", "sync", "close", "name", "read", "ack", "any"};

/* Where a call's path or descriptor is. FD: argument 0. */
enum { FD, PATH, AT, TWO, TWO_AT, MAPPING, OUT_FD, ALL };
typedef struct { long nr; const char *name; int class, shape; } Call;
static const Call CALLS[] = {
    {SYS_openat, "openat", OPEN, AT}, {SYS_openat2, "openat2", OPEN, AT},
    {SYS_write, "write", WRITE, FD}, {SYS_pwrite64, "pwrite64", WRITE, FD}, {SYS_writev, "writev", WRITE, FD},
    {SYS_pwritev, "pwritev", WRITE, FD}, {SYS_pwritev2, "pwritev2", WRITE, FD},
    {SYS_ftruncate, "ftruncate", SIZE, FD}, {SYS_truncate, "truncate", SIZE, PATH}, {SYS_fallocate, "fallocate", SIZE, FD},
    {SYS_fsync, "fsync", SYNC, FD}, {SYS_fdatasync, "fdatasync", SYNC, FD}, {SYS_syncfs, "syncfs", SYNC, FD},
    {SYS_sync, "sync", SYNC, ALL}, {SYS_close, "close", CLOSE, FD},
    {SYS_renameat, "renameat", NAME, TWO_AT}, {SYS_renameat2, "renameat2", NAME, TWO_AT},
    {SYS_linkat, "linkat", NAME, TWO_AT}, {SYS_unlinkat, "unlinkat", NAME, AT}, {SYS_mkdirat, "mkdirat", NAME, AT},
    {SYS_read, "read", READ, FD}, {SYS_pread64, "pread64", READ, FD}, {SYS_readv, "readv", READ, FD},
    {SYS_preadv, "preadv", READ, FD}, {SYS_preadv2, "preadv2", READ, FD},
    {SYS_mmap, "mmap", ANY, MAPPING}, {SYS_copy_file_range, "copy_file_range", ANY, OUT_FD},
    {SYS_sendfile, "sendfile", ANY, FD}, {SYS_splice, "splice", ANY, OUT_FD},
#ifdef __x86_64__
    {SYS_open, "open", OPEN, PATH}, {SYS_creat, "creat", OPEN, PATH}, {SYS_rename, "rename", NAME, TWO},
    {SYS_link, "link", NAME, TWO}, {SYS_unlink, "unlink", NAME, PATH}, {SYS_rmdir, "rmdir", NAME, PATH},
    {SYS_mkdir, "mkdir", NAME, PATH},
#endif
};
enum { N_CALLS = sizeof CALLS / sizeof *CALLS, MAX_TASKS = 4096, PARTS = 1024 };

typedef struct { /* a thread, and the call it is in */
    pid_t tid;
    const Call *call;
    bool noted, faulted;
    int class, answer;
    unsigned long long number, inode;
    long long offset, len, flags, data_at;
    uint64_t args[6];
    char path[4096], path2[4096];
} Task;

enum { SHORT = -1, ZERO = -2, KILL = -3 };
static Task *tasks[MAX_TASKS];
static int n_tasks;
static char watch[4096], ack[4096];
static FILE *log_file;
static int data_file = -1;
static long long data_len;
static int fault_class = -1, fault_answer;
static unsigned long long fault_at, counted[CLASSES];
static bool struck, begun;
static pid_t program;

static _Noreturn void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("meddle: ", stderr);
    vfprintf(stderr, format, list);
    fprintf(stderr, ": %s\n", strerror(errno));
    exit(125); /* PTRACE_O_EXITKILL ends what is traced */
}

static Task *task_of(pid_t tid) {
    for (int i = 0; i < n_tasks; i++)
        if (tasks[i]->tid == tid) return tasks[i];
    if (n_tasks == MAX_TASKS) die("more than %d threads", MAX_TASKS);
    Task *task = calloc(1, sizeof *task);
    if (!task) die("no memory");
    task->tid = tid;
    return tasks[n_tasks++] = task;
}

static void forget(pid_t tid) {
    for (int i = 0; i < n_tasks; i++)
        if (tasks[i]->tid == tid) {
            free(tasks[i]);
            tasks[i] = tasks[--n_tasks];
            return;
        }
}

/* ---- what the program's memory and descriptors hold ------------------------------------------- */
static bool peek(pid_t tid, uint64_t at, void *to, size_t len) {
    struct iovec here = {to, len}, there = {(void *)(uintptr_t)at, len};
    return process_vm_readv(tid, &here, 1, &there, 1, 0) == (ssize_t)len;
}

static bool peek_text(pid_t tid, uint64_t at, char *to, size_t room) {
    for (size_t n = 0; n + 1 < room; n++) { /* a byte at a time: the next page may not be there */
        if (!peek(tid, at + n, to + n, 1)) return false;
        if (!to[n]) return true;
    }
    return false;
}

static bool link_of(char *to, const char *format, ...) {
    char name[64];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    ssize_t n = readlink(name, to, 4095);
    to[n < 0 ? 0 : n] = 0;
    return n > 0;
}

static void fold(char *path) { /* "//", "." and ".." go */
    char *to = path, *from = path;
    while (*from) {
        size_t n = strcspn(from + 1, "/") + 1; /* from[0] is a slash */
        if (n == 1 || (n == 2 && from[1] == '.')) {
        } else if (n == 3 && from[1] == '.' && from[2] == '.') {
            while (to > path && *--to != '/') {}
        } else {
            memmove(to, from, n), to += n;
        }
        from += n;
    }
    *to = 0;
}

/* The whole path of a path argument; false when it is relative to nothing known. */
static bool resolve(pid_t tid, int dir, uint64_t at, char *to) {
    char text[4096], base[4096];
    if (!peek_text(tid, at, text, sizeof text)) return false;
    if (text[0] == '/') {
        strcpy(to, text);
    } else {
        bool known = dir == AT_FDCWD ? link_of(base, "/proc/%d/cwd", tid) : link_of(base, "/proc/%d/fd/%d", tid, dir);
        if (!known || strlen(base) + strlen(text) + 2 > 4096) return false;
        sprintf(to, "%s/%s", base, text);
    }
    fold(to);
    return true;
}

static bool inside(const char *path) {
    size_t n = strlen(watch);
    return strncmp(path, watch, n) == 0 && (path[n] == 0 || path[n] == '/');
}

static unsigned long long inode_of(const char *format, ...) {
    char name[4160];
    struct stat found;
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    return stat(name, &found) ? 0 : (unsigned long long)found.st_ino;
}

/* Position and flags of a descriptor. */
static void look_at(Task *task, int fd) {
    char name[64], line[128];
    snprintf(name, sizeof name, "/proc/%d/fdinfo/%d", task->tid, fd);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "pos: %lld", &task->offset);
        if (strncmp(line, "flags:", 6) == 0) task->flags = strtoll(line + 6, NULL, 8);
    }
    if (file) fclose(file);
    task->inode = inode_of("/proc/%d/fd/%d", task->tid, fd);
}

/* ---- a call begins ----------------------------------------------------------------------------- */
static void keep_part(pid_t tid, uint64_t at, uint64_t len) {
    static char part[1 << 20];
    for (uint64_t done = 0; done < len;) {
        size_t n = len - done < sizeof part ? len - done : sizeof part;
        if (!peek(tid, at + done, part, n)) memset(part, 0, n); /* the kernel will answer EFAULT */
        if (pwrite(data_file, part, n, data_len) != (ssize_t)n) die("the data file");
        data_len += (long long)n, done += n;
    }
}

static void read_write_arguments(Task *task) {
    const char *name = task->call->name;
    const bool vector = strchr(name, 'v') != NULL, placed = name[0] == 'p';
    if (placed) task->offset = (long long)task->args[3];
    else if (task->flags & O_APPEND) {
        char fd[64];
        struct stat found;
        snprintf(fd, sizeof fd, "/proc/%d/fd/%d", task->tid, (int)task->args[0]);
        task->offset = stat(fd, &found) ? 0 : (long long)found.st_size;
    }
    if (strcmp(name, "pwritev2") == 0) {
        if ((int64_t)task->args[3] == -1) look_at(task, (int)task->args[0]);
        if (task->args[5] & (RWF_DSYNC | RWF_SYNC)) task->flags |= O_DSYNC;
    }
    struct iovec parts[PARTS] = {{(void *)(uintptr_t)task->args[1], (size_t)task->args[2]}};
    size_t n = 1;
    if (vector) {
        n = task->args[2] < PARTS ? (size_t)task->args[2] : PARTS;
        if (!peek(task->tid, task->args[1], parts, n * sizeof *parts)) n = 0;
    }
    task->data_at = task->class == WRITE && data_file >= 0 ? data_len : -1;
    for (size_t i = 0; i < n; i++) {
        task->len += (long long)parts[i].iov_len;
        if (task->data_at >= 0) keep_part(task->tid, (uintptr_t)parts[i].iov_base, parts[i].iov_len);
    }
}

/* Whether the call touches what is watched; fills in what is to be noted. */
static bool concerns(Task *task) {
    const uint64_t *a = task->args;
    const Call *call = task->call;
    const int fd = call->shape == MAPPING ? (int)a[4] : call->shape == OUT_FD ? (int)a[2] : (int)a[0];
    switch (call->shape) {
    case ALL: return begun;
    case PATH: if (!resolve(task->tid, AT_FDCWD, a[0], task->path)) return false; break;
    case AT: if (!resolve(task->tid, (int)a[0], a[1], task->path)) return false; break;
    case TWO:
        if (!resolve(task->tid, AT_FDCWD, a[0], task->path) || !resolve(task->tid, AT_FDCWD, a[1], task->path2)) return false;
        break;
    case TWO_AT:
        if (!resolve(task->tid, (int)a[0], a[1], task->path) || !resolve(task->tid, (int)a[2], a[3], task->path2)) return false;
        break;
    case MAPPING:
        if ((a[3] & MAP_TYPE) == MAP_PRIVATE || !(a[2] & PROT_WRITE) || (a[3] & MAP_ANONYMOUS)) return false; /* fall through */
    default: if (!link_of(task->path, "/proc/%d/fd/%d", task->tid, fd)) return false;
    }
    if (call->class == OPEN) { /* its flags */
        task->flags = (long long)(call->shape == PATH ? a[1] : a[2]);
        if (strcmp(call->name, "creat") == 0) task->flags = O_CREAT | O_WRONLY | O_TRUNC;
        uint64_t how = 0;
        if (strcmp(call->name, "openat2") == 0 && peek(task->tid, a[2], &how, sizeof how)) task->flags = (long long)how;
    }
    if (ack[0] && strcmp(task->path, ack) == 0) {
        task->class = ACK;
        return call->class == WRITE;
    }
    return inside(task->path) || inside(task->path2);
}

static void step_on(pid_t tid, int how, int signal) {
    if (ptrace(how, tid, 0, (long)signal) && errno != ESRCH) die("ptrace");
}

/* Sets the number of the call (-1: make none), one of its arguments, or, at its end, its result. */
enum { CALL_NUMBER, ARGUMENT_2, RESULT };
static void set(pid_t tid, int what, uint64_t value) {
#ifdef __x86_64__
    static const size_t at[] = {offsetof(struct user_regs_struct, orig_rax), offsetof(struct user_regs_struct, rdx),
                                offsetof(struct user_regs_struct, rax)};
    if (ptrace(PTRACE_POKEUSER, tid, at[what], value) && errno != ESRCH) die("PTRACE_POKEUSER");
#else
    if (what == CALL_NUMBER) {
        int number = (int)value;
        struct iovec one = {&number, sizeof number};
        if (ptrace(PTRACE_SETREGSET, tid, NT_ARM_SYSTEM_CALL, &one) && errno != ESRCH) die("PTRACE_SETREGSET");
        return;
    }
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &all) && errno != ESRCH) die("PTRACE_GETREGSET");
    registers.regs[what == ARGUMENT_2 ? 2 : 0] = value;
    if (ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &all) && errno != ESRCH) die("PTRACE_SETREGSET");
#endif
}

static void kill_all(void) {
    kill(program, SIGKILL);
    for (int i = 0; i < n_tasks; i++) kill(tasks[i]->tid, SIGKILL); /* the id of a thread kills its process */
}

static void begins(pid_t tid) {
    Task *task = task_of(tid);
    Info info;
    if (ptrace(GET_CALL, tid, sizeof info, &info) < 0) {
        if (errno == ESRCH) return;
        die("PTRACE_GET_SYSCALL_INFO (it takes Linux 5.3)");
    }
    const Call *call = NULL;
    for (int i = 0; i < N_CALLS && !call; i++)
        if (CALLS[i].nr == (long)info.seccomp.nr) call = &CALLS[i];
    if (!call || info.op != INFO_SECCOMP) {
        step_on(tid, PTRACE_CONT, 0);
        return;
    }
    *task = (Task){.tid = tid, .call = call, .class = call->class, .data_at = -1};
    for (int i = 0; i < 6; i++) task->args[i] = info.seccomp.args[i];
    if (!concerns(task)) {
        if (call->class == OPEN && begun && (task->flags & O_CREAT) && task->class != ACK &&
            strncmp(task->path, "/proc/", 6) && strncmp(task->path, "/dev/null", 9) && log_file)
            fprintf(log_file, "outside\t%s\n", task->path);
        step_on(tid, PTRACE_CONT, 0);
        return;
    }
    begun = true;
    if (call->class == ANY) {
        if (log_file) fprintf(log_file, "unseen\t%s\t%s\n", call->name, task->path);
        step_on(tid, PTRACE_CONT, 0);
        return;
    }
    task->noted = true;
    task->number = ++counted[ANY];
    counted[task->class]++;
    if (call->shape == FD) look_at(task, (int)task->args[0]);
    if (call->class == WRITE || call->class == READ) read_write_arguments(task);
    if (call->class == SIZE) { /* fallocate: mode in flags, its range; the others: a length */
        bool range = strcmp(call->name, "fallocate") == 0;
        task->offset = range ? (long long)task->args[2] : 0;
        task->len = (long long)task->args[range ? 3 : 1];
        task->flags = range ? (long long)task->args[1] : -1;
    }
    if (call->class == NAME) task->flags = (long long)(call->shape == TWO_AT ? task->args[4] : task->args[2]);
    if (fault_class >= 0 && !struck && counted[fault_class] == fault_at &&
        (fault_class == ANY || fault_class == task->class)) {
        struck = true, task->faulted = true, task->answer = fault_answer;
        if (fault_answer == KILL) {
            kill_all();
            return; /* whoever is killed while it stops here does not make the call */
        }
        if (fault_answer == SHORT) set(tid, ARGUMENT_2, task->args[2] / 2);
        else if (call->class != CLOSE) set(tid, CALL_NUMBER, (uint64_t)-1);
    }
    step_on(tid, PTRACE_SYSCALL, 0);
}

static void ends(pid_t tid) {
    Task *task = task_of(tid);
    Info info;
    if (ptrace(GET_CALL, tid, sizeof info, &info) < 0) return; /* it died */
    long long result = info.op == INFO_EXIT ? (long long)info.exit.result : 0;
    if (task->faulted) {
        if (task->answer == SHORT) set(tid, ARGUMENT_2, task->args[2]); /* callers may rely on it */
        else set(tid, RESULT, (uint64_t)(result = task->answer == ZERO ? 0 : -(long long)task->answer));
    }
    if (task->noted && log_file) {
        if (task->class == OPEN && result >= 0) task->inode = inode_of("/proc/%d/fd/%lld", tid, result);
        if (task->class == NAME && result == 0) task->inode = inode_of("%s", task->path2[0] ? task->path2 : task->path);
        if (task->class == SIZE && task->call->shape == PATH) task->inode = inode_of("%s", task->path);
        fprintf(log_file, "%llu\t%s\t%s\t%lld\t%llu\t%lld\t%lld\t%lld\t%lld\t%s\t%s\n", task->number, CLASS[task->class],
                task->call->name, result, task->inode, task->offset, task->len, task->flags, task->data_at,
                task->path, task->path2);
    }
    task->noted = false;
    step_on(tid, PTRACE_CONT, 0);
}

/* ---- start and end ------------------------------------------------------------------------------- */
static void filter_calls(void) {
    static const long refused[] = {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register};
    enum { REFUSED = sizeof refused / sizeof *refused };
    struct sock_filter code[2 * (N_CALLS + REFUSED) + 8];
    unsigned short n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < N_CALLS; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)CALLS[i].nr, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    }
    for (int i = 0; i < REFUSED; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)refused[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) die("seccomp");
}

static void start(char **argv) {
    int gate[2];
    char byte;
    if (pipe2(gate, O_CLOEXEC) || (program = fork()) < 0) die("fork");
    if (program == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(gate[1]);
        if (read(gate[0], &byte, 1) != 1) _exit(125);
        filter_calls();
        execvp(argv[0], argv);
        die("%s", argv[0]);
    }
    long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE |
                   PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
    if (ptrace(PTRACE_SEIZE, program, 0, options)) die("PTRACE_SEIZE");
    close(gate[0]);
    if (write(gate[1], "", 1) != 1) die("the start");
    close(gate[1]);
}

static void stopped(pid_t tid, int status) {
    const int signal = WSTOPSIG(status), event = status >> 16;
    task_of(tid);
    if (event == PTRACE_EVENT_SECCOMP) begins(tid);
    else if (signal == (SIGTRAP | 0x80)) ends(tid);
    else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP) step_on(tid, PTRACE_LISTEN, 0); /* a stop of the whole group */
    else step_on(tid, PTRACE_CONT, event ? 0 : signal);
}

int main(int argc, char **argv) {
    static const struct { const char *name; int answer; } WORDS[] = {{"kill", KILL}, {"short", SHORT}, {"zero", ZERO}};
    int i = 1, ended = -1;
    for (; i + 1 < argc && strcmp(argv[i], "--"); i += 2) {
        char *value = argv[i + 1];
        if (strcmp(argv[i], "--watch") == 0) {
            if (!realpath(value, watch)) die("%s", value);
        } else if (strcmp(argv[i], "--ack") == 0) {
            if (!realpath(value, ack)) die("%s", value);
        } else if (strcmp(argv[i], "--log") == 0) {
            if (!(log_file = fopen(value, "we"))) die("%s", value);
        } else if (strcmp(argv[i], "--data") == 0) {
            if ((data_file = open(value, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666)) < 0) die("%s", value);
        } else if (strcmp(argv[i], "--fault") == 0) {
            char class[16], answer[16];
            if (sscanf(value, "%15[a-z]:%llu:%15s", class, &fault_at, answer) != 3) die("--fault %s", value);
            for (int k = 0; k < CLASSES; k++)
                if (strcmp(class, CLASS[k]) == 0) fault_class = k;
            fault_answer = atoi(answer);
            for (int k = 0; k < 3; k++)
                if (strcmp(answer, WORDS[k].name) == 0) fault_answer = WORDS[k].answer;
            if (fault_class < 0 || fault_answer == 0) die("--fault %s", value);
        } else die("unknown option %s", argv[i]);
    }
    if (!watch[0] || i + 1 >= argc) die("usage: meddle --watch DIR [...] -- PROGRAM ...");
    start(argv + i + 1);
    /* Until the program ends; a process of its own that continues for two seconds more is left behind. */
    const struct timespec tick = {.tv_nsec = 5 * 1000 * 1000};
    for (int ticks = 0;;) {
        int status;
        pid_t tid = waitpid(-1, &status, __WALL | (ended >= 0 ? WNOHANG : 0));
        if (tid < 0 && errno == EINTR) continue;
        if (tid < 0) break; /* all gone */
        if (tid == 0) {
            nanosleep(&tick, NULL);
            if (++ticks == 400) {
                for (int k = 0; k < n_tasks && log_file; k++) fprintf(log_file, "left\t%d\n", tasks[k]->tid);
                kill_all();
            }
            if (ticks > 800) break;
        } else if (WIFSTOPPED(status)) {
            stopped(tid, status);
        } else {
            if (tid == program) ended = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            forget(tid);
        }
    }
    if (log_file && (fprintf(log_file, "end\t%d\t%d\n", ended, struck) < 0 || fclose(log_file))) die("the log");
    return ended < 0 ? 125 : ended;
}
