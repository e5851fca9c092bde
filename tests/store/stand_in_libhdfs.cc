// libhdfs for tests: a name node's files are in the folder $STAND_IN_HDFS/host:port of this machine.
//
// As in HDFS, to open a file for writing truncates it, what is written can be seen before it is whole, and a rename
// does not replace. There is one line per connection in $STAND_IN_HDFS/connections: the host, port and user.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace {

struct Builder {
  std::string host, user;
  int port = 0;
};

struct FileSystem {
  std::string url, root;
};

struct File {
  int descriptor;
};

// As libhdfs lays it out.
struct FileInfo {
  int kind;
  char* name;
  time_t last_modified;
  int64_t size;
  short replication;
  int64_t block_size;
  char* owner;
  char* group;
  short permissions;
  time_t last_access;
};

std::string PathOf(const FileSystem* fs, std::string path) {
  if (path.starts_with("hdfs://")) path = path.substr(path.find('/', 7));
  return fs->root + "/" + path;
}

bool Fill(const FileSystem* fs, const char* path, FileInfo* info) {
  struct stat found;
  if (stat(PathOf(fs, path).c_str(), &found) != 0) return false;
  info->kind = S_ISDIR(found.st_mode) ? 'D' : 'F';
  info->name = strdup(strncmp(path, "hdfs://", 7) == 0 ? path : (fs->url + path).c_str());
  info->last_modified = info->last_access = found.st_mtime;
  info->size = S_ISDIR(found.st_mode) ? 0 : found.st_size;
  info->replication = 1;
  info->block_size = 1 << 20;
  info->owner = strdup("owner");
  info->group = strdup("group");
  info->permissions = 0755;
  return true;
}

}  // namespace

extern "C" {

Builder* hdfsNewBuilder() { return new Builder; }
void hdfsFreeBuilder(Builder* builder) { delete builder; }
void hdfsBuilderSetNameNode(Builder* builder, const char* host) { builder->host = host; }
void hdfsBuilderSetNameNodePort(Builder* builder, uint16_t port) { builder->port = port; }
void hdfsBuilderSetUserName(Builder* builder, const char* user) { builder->user = user; }
void hdfsBuilderSetKerbTicketCachePath(Builder*, const char*) {}
void hdfsBuilderSetForceNewInstance(Builder*) {}
int hdfsBuilderConfSetStr(Builder*, const char*, const char*) { return 0; }

FileSystem* hdfsBuilderConnect(Builder* builder) {
  const std::string base = getenv("STAND_IN_HDFS");
  std::string name = builder->host + ":" + std::to_string(builder->port);
  if (name.starts_with("hdfs://")) name = name.substr(7);
  std::ofstream(base + "/connections", std::ios::app) << name << " " << builder->user << "\n";
  auto* fs = new FileSystem{"hdfs://" + name, base + "/" + name};
  std::filesystem::create_directories(fs->root);
  delete builder;
  return fs;
}

int hdfsDisconnect(FileSystem* fs) {
  delete fs;
  return 0;
}

char* hdfsGetWorkingDirectory(FileSystem* fs, char* buffer, size_t size) {
  snprintf(buffer, size, "%s/user/nobody", fs->url.c_str());
  return buffer;
}

int hdfsExists(FileSystem* fs, const char* path) { return access(PathOf(fs, path).c_str(), F_OK); }

int hdfsCreateDirectory(FileSystem* fs, const char* path) {
  std::error_code error;
  std::filesystem::create_directories(PathOf(fs, path), error);
  errno = error.value();
  return error ? -1 : 0;
}

int hdfsDelete(FileSystem* fs, const char* path, int recursive) {
  std::error_code error;
  if (recursive) {
    std::filesystem::remove_all(PathOf(fs, path), error);
  } else {
    std::filesystem::remove(PathOf(fs, path), error);
  }
  errno = error.value();
  return error ? -1 : 0;
}

int hdfsRename(FileSystem* fs, const char* from, const char* to) {
  errno = EIO;
  return hdfsExists(fs, to) == 0 ? -1 : rename(PathOf(fs, from).c_str(), PathOf(fs, to).c_str());
}

FileInfo* hdfsGetPathInfo(FileSystem* fs, const char* path) {
  auto* info = static_cast<FileInfo*>(calloc(1, sizeof(FileInfo)));
  if (Fill(fs, path, info)) return info;
  free(info);
  errno = ENOENT;
  return nullptr;
}

FileInfo* hdfsListDirectory(FileSystem* fs, const char* path, int* count) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(PathOf(fs, path), error)) {
    names.push_back(std::string(path) + "/" + entry.path().filename().string());
  }
  *count = 0;
  errno = error.value();
  if (error || names.empty()) return nullptr;
  auto* infos = static_cast<FileInfo*>(calloc(names.size(), sizeof(FileInfo)));
  for (const auto& name : names) *count += Fill(fs, name.c_str(), infos + *count);
  return infos;
}

void hdfsFreeFileInfo(FileInfo* infos, int count) {
  for (int place = 0; place < count; ++place) {
    free(infos[place].name);
    free(infos[place].owner);
    free(infos[place].group);
  }
  free(infos);
}

int64_t hdfsGetCapacity(FileSystem*) { return 1 << 30; }
int64_t hdfsGetUsed(FileSystem*) { return 0; }
int64_t hdfsGetDefaultBlockSize(FileSystem*) { return 1 << 20; }
int hdfsChown(FileSystem*, const char*, const char*, const char*) { return 0; }
int hdfsChmod(FileSystem*, const char*, short) { return 0; }

File* hdfsOpenFile(FileSystem* fs, const char* path, int flags, int, short, int32_t) {
  const std::string whole = PathOf(fs, path);
  if (flags & O_WRONLY) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(whole).parent_path(), ignored);
    flags |= O_CREAT | (flags & O_APPEND ? 0 : O_TRUNC);
  }
  const int descriptor = open(whole.c_str(), flags, 0644);
  return descriptor < 0 ? nullptr : new File{descriptor};
}

int hdfsCloseFile(FileSystem*, File* file) {
  const int result = close(file->descriptor);
  delete file;
  return result;
}

int32_t hdfsRead(FileSystem*, File* file, void* buffer, int32_t size) { return read(file->descriptor, buffer, size); }
int32_t hdfsPread(FileSystem*, File* file, int64_t place, void* buffer, int32_t size) {
  return pread(file->descriptor, buffer, size, place);
}
int32_t hdfsWrite(FileSystem*, File* file, const void* buffer, int32_t size) {
  return write(file->descriptor, buffer, size);
}
int hdfsSeek(FileSystem*, File* file, int64_t place) { return lseek(file->descriptor, place, SEEK_SET) < 0 ? -1 : 0; }
int64_t hdfsTell(FileSystem*, File* file) { return lseek(file->descriptor, 0, SEEK_CUR); }
int hdfsFlush(FileSystem*, File*) { return 0; }
int hdfsAvailable(FileSystem*, File*) { return 0; }

}  // extern "C"
