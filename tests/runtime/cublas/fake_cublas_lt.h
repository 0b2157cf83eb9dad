// cuBLASLt as its manual describes it, on the host: column-major matrices, epilogues, promises of
// alignment. What a test wants to know of the calls, and which epilogues it shall not have.
#pragma once

#include <cublasLt.h>

#include <set>

namespace pipelag::cuda {

struct FakeCublasLt {
  std::set<cublasLtEpilogue_t> missing;  ///< of which no search finds anything
  int searches = 0;
  int products = 0;
};

/// The one that the library's functions act on.
FakeCublasLt& TheFakeCublasLt();

}  // namespace pipelag::cuda
