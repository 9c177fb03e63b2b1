#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static char said[256];
static void say(const char *word) { strncat(said, word, sizeof said - strlen(said) - 1); }
static void mark(const char *place) {
    char path[4096];
    snprintf(path, sizeof path, "%s/uid-%d", place, (int)getuid());
    int file = open(path, O_CREAT | O_RDWR, 0666);
    if (file >= 0) { if (write(file, "x", 1) == 1) say("wrote "); close(file); }
}
__attribute__((constructor)) static void run(void) {
    mark("PLACE"); mark("/tmp"); mark("/dev/shm"); mark("/etc");
    if (!setuid(0) || !seteuid(0) || !setgid(0)) say("root ");
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) say("new-privileges ");
    if (getgroups(0, 0)) say("groups ");
    if (getppid() || !kill(getppid() ? getppid() : 2, 0)) say("others ");
    if (open("/proc/self/status", O_RDONLY) >= 0 || open("/etc/shadow", O_RDONLY) >= 0) say("sees ");
    if (open("PLACE/secret", O_RDONLY) >= 0) say("reads ");
    int files = 0;
    for (int i = 3; i < 256; i++) files += fcntl(i, F_GETFD) >= 0;
    if (files != 1) say("files ");
    setsid();
    if (!fork()) { prctl(PR_SET_PDEATHSIG, 0); pause(); }
    snprintf(said + strlen(said), 64, "uid=%d gid=%d", (int)getuid(), (int)getgid());
    setenv("NCCL_SAID", said, 1);
}
