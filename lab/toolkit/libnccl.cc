// Copyright: Busbar contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// Of NCCL 2.27.7 what works without a GPU: its version, the names of its variables, and the reading of its files.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <pwd.h>
#include <string>
#include <unistd.h>

#include "nccl.h"

extern "C" {
// Found by those who look for them in the file, as in the real library. The first NUL stands for what is before them.
extern const char nccl_variables[];
extern const char nccl_said[];
const char nccl_variables[] = "\0"
#include "nccl_variables.inc"
    ;
const char nccl_said[] = "NCCL version 2.27.7+cuda13.0";
}

namespace {

const char *const INTERFACES = "/srv/busbar-lab/hw/sys/class/net";

// A line is NAME=VALUE to the letter: nothing is trimmed, # is a comment in the first column only, 1023 bytes count.
// What is in the environment already stays.
void read_settings(const std::string &path) {
  FILE *file = fopen(path.c_str(), "r");
  if (file == nullptr) return;
  char *line = nullptr;
  size_t size = 0;
  while (getline(&line, &size, file) != -1) {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, '=');
    if (line[0] == '#' || value == nullptr) continue;
    *value++ = 0;
    setenv(std::string(line).substr(0, 1023).c_str(), std::string(value).substr(0, 1023).c_str(), 0);
  }
  free(line);
  fclose(file);
}

void read_all_settings() {
  const char *named = getenv("NCCL_CONF_FILE");
  const struct passwd *user = getpwuid(getuid());
  if (named != nullptr && *named != 0) read_settings(named);
  else if (user != nullptr) read_settings(std::string(user->pw_dir) + "/.nccl.conf");
  read_settings("/etc/nccl.conf");
}

// [^][=]name,name...: ^ excludes, = compares whole names rather than beginnings.
bool listed(const char *list, const char *name) {
  const bool exclude = *list == '^';
  if (exclude) list++;
  const bool whole = *list == '=';
  if (whole) list++;
  bool found = false;
  while (*list != 0) {
    const std::string item(list, strcspn(list, ",:"));
    found |= whole ? item == name : !item.empty() && strncmp(name, item.c_str(), item.size()) == 0;
    list += strcspn(list, ",");
    if (*list == ',') list++;
  }
  return found != exclude;
}

// Whether NCCL_SOCKET_IFNAME leaves an interface of the simulated node. Where there is no such node, nothing is known.
bool interface_left() {
  const char *list = getenv("NCCL_SOCKET_IFNAME");
  DIR *directory = opendir(INTERFACES);
  if (directory == nullptr) return true;
  bool left = list == nullptr || *list == 0;
  while (const struct dirent *entry = readdir(directory))
    left |= entry->d_name[0] != '.' && list != nullptr && listed(list, entry->d_name);
  closedir(directory);
  return left;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  read_all_settings();
  if (id == nullptr) return ncclInvalidArgument;
  memset(id, 0, sizeof *id);
  if (interface_left()) return ncclSuccess;
  const char *debug = getenv("NCCL_DEBUG");
  if (debug != nullptr && (strcasecmp(debug, "WARN") == 0 || strcasecmp(debug, "INFO") == 0))
    puts("NCCL WARN Bootstrap : no socket interface found");
  return ncclInvalidUsage;
}

ncclResult_t ncclCommInitAll(ncclComm_t *, int, const int *) { return ncclUnhandledCudaError; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }

const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    default: return "internal error - please report this issue to the NCCL developers";
  }
}

const char *ncclGetLastError(ncclComm_t) { return ""; }
}
