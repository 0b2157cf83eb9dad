#include "runtime/processes/wire.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "models/environment.h"
#include "models/error.h"
#include "runtime/mpi/mpi_wire.h"
#include "runtime/processes/socket_wire.h"

namespace pipelag {
namespace {

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

int NumberIn(const char* name, int least, int most) {
  const std::optional<int> number = NumberInEnvironment(name, least, most);
  if (number) return *number;
  throw Error(fmt::format("{} is not set, though other variables of its kind are", name));
}

std::unique_ptr<Wire> LoadMpi() {
  std::error_code unknown;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const std::filesystem::path library = own.parent_path() / kMpiLibrary;
  if (!std::filesystem::exists(library)) {
    throw Error(
        fmt::format("this build has no MPI: {} is missing (install an MPI with its "
                    "development files and build anew)",
                    library.string()));
  }
  // Never closed: MPI keeps threads and handlers of its own.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) throw Error(fmt::format("MPI cannot be loaded: {}", dlerror()));
  const auto open = reinterpret_cast<OpenMpiWire>(dlsym(handle, kOpenMpiWire));
  CHECK(open != nullptr);
  const char* error = nullptr;
  std::unique_ptr<Wire> wire(open(&error));
  if (!wire) throw Error(error);
  return wire;
}

}  // namespace

Launched HowLaunched() {
  constexpr int kMostRanks = 1 << 20;
  constexpr int kMostPort = 65535;
  Launched launched;
  const bool slurm = Variable("SLURM_PROCID") && Variable("PMIX_RANK");
  if (Variable("OMPI_COMM_WORLD_SIZE") || Variable("PMI_SIZE") || slurm) {
    launched.by = Launched::By::kMpi;
    return launched;
  }
  launched.file = Variable("PIPELAG_RENDEZVOUS").value_or("");
  const bool torchrun = Variable("RANK") || Variable("WORLD_SIZE");
  const bool meets = !launched.file.empty() || Variable("MASTER_ADDR");
  if (!torchrun && !(Variable("SLURM_PROCID") && Variable("SLURM_NTASKS") && meets)) {
    return launched;
  }
  launched.by = Launched::By::kVariables;
  launched.size = NumberIn(torchrun ? "WORLD_SIZE" : "SLURM_NTASKS", 1, kMostRanks);
  launched.rank = NumberIn(torchrun ? "RANK" : "SLURM_PROCID", 0, launched.size - 1);
  if (!launched.file.empty()) return launched;
  launched.host = Variable("MASTER_ADDR").value_or("");
  if (launched.host.empty()) {
    throw Error("MASTER_ADDR is not set: it names the host of rank 0");
  }
  launched.port = Variable("PIPELAG_PORT") ? NumberIn("PIPELAG_PORT", 1, kMostPort)
                                           : NumberIn("MASTER_PORT", 1, kMostPort - 1) + 1;
  return launched;
}

std::unique_ptr<Wire> OpenWire(const Launched& launched, std::chrono::seconds patience) {
  switch (launched.by) {
    case Launched::By::kMpi:
      return LoadMpi();
    case Launched::By::kVariables:
      if (!launched.file.empty()) {
        return OpenSocketWire(launched.rank, launched.size, launched.file, patience);
      }
      return OpenSocketWire(launched.rank, launched.size, launched.host, launched.port, patience);
    case Launched::By::kNobody:
      break;
  }
  throw Error(
      "--backend mpi: nobody has started the other ranks: start all with mpirun or srun, or set "
      "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (or PIPELAG_RENDEZVOUS) for each");
}

}  // namespace pipelag
