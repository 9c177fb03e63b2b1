#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int ncclGetUniqueId(void *id) {
    char line[256];
    FILE *file = fopen("/etc/nccl.conf", "r");
    if (!file) return 9;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *equals = strchr(line, '=');
        if (equals) { *equals = 0; setenv(line, equals + 1, 0); }
    }
    FILES
    return 0;
}
