#include "runtime/device/backend.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "models/error.h"

namespace pipelag {

std::unique_ptr<DeviceBackend> LoadCuda(bool eager) {
  if (eager) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  std::error_code unknown;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path library = own.parent_path() / kCudaLibrary;
  if (!std::filesystem::exists(library)) {
    throw Error(
        fmt::format("no GPU was found: this build has no CUDA, {} is missing (build pipelag_cuda "
                    "where there is a CUDA toolkit)",
                    library.string()));
  }
  // Never closed: the CUDA runtime keeps threads and handlers of its own.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(fmt::format("no GPU was found: CUDA cannot be loaded: {}", dlerror()));
  }
  const auto open = reinterpret_cast<OpenCuda>(dlsym(handle, kOpenCuda));
  CHECK(open != nullptr);
  const char* error = nullptr;
  std::unique_ptr<DeviceBackend> backend(open(&error));
  if (!backend) throw Error(fmt::format("no GPU was found: {}", error));
  return backend;
}

std::string DescribeCuda() {
  try {
    const std::unique_ptr<DeviceBackend> backend = LoadCuda();
    const std::string name = backend->Open(0)->name();
    return backend->devices() == 1 ? name : fmt::format("{} × {}", backend->devices(), name);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace pipelag
