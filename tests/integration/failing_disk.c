/* A disk that fails on demand, to be preloaded: while $FAILING_DISK/fsync is there nothing can be synced (EIO), while
 * $FAILING_DISK/full is there nothing can be written where SQLite writes, by position (ENOSPC).
 *
 * cc -shared -fPIC -o failing_disk.so failing_disk.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(const char *fault, int error) {
    char path[4096];
    const char *folder = getenv("FAILING_DISK");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/nonexistent", fault);
    int saved = errno, failing = access(path, F_OK) == 0;
    errno = failing ? error : saved;
    return failing;
}

#define SYNC(name)                                                                 \
    int name(int file) {                                                           \
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name);                  \
        return fails("fsync", EIO) ? -1 : real(file);                              \
    }

#define WRITE(name, offset)                                                        \
    ssize_t name(int file, const void *bytes, size_t count, offset at) {           \
        ssize_t (*real)(int, const void *, size_t, offset) =                       \
            (ssize_t (*)(int, const void *, size_t, offset))dlsym(RTLD_NEXT, #name); \
        return fails("full", ENOSPC) ? -1 : real(file, bytes, count, at);          \
    }

SYNC(fsync)
SYNC(fdatasync)
WRITE(pwrite, off_t)
WRITE(pwrite64, off64_t)
