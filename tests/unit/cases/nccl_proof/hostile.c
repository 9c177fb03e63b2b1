#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static void mark(const char *place) {
    char path[4096];
    snprintf(path, sizeof path, "%s/uid-%d", place, (int)getuid());
    int file = open(path, O_CREAT | O_RDWR, 0666);
    if (file >= 0) { if (write(file, "x", 1) == 1) printf("wrote "); close(file); }
}
__attribute__((constructor)) static void run(void) {
    mark("PLACE"); mark("/tmp"); mark("/dev/shm"); mark("/etc");
    if (!setuid(0) || !seteuid(0) || !setgid(0)) printf("root ");
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) printf("new-privileges ");
    if (getgroups(0, 0)) printf("groups ");
    if (getppid() || !kill(getppid() ? getppid() : 2, 0)) printf("others ");
    if (open("/proc/self/status", O_RDONLY) >= 0 || open("/etc/shadow", O_RDONLY) >= 0) printf("sees ");
    if (open("PLACE/secret", O_RDONLY) >= 0) printf("reads ");
    int files = 0;
    for (int i = 3; i < 256; i++) files += fcntl(i, F_GETFD) >= 0;
    if (files != 1) printf("files ");
    setsid();
    if (!fork()) { prctl(PR_SET_PDEATHSIG, 0); pause(); }
    printf("uid=%d gid=%d\n", (int)getuid(), (int)getgid());
    fflush(stdout);
}
