// Optimizers on a device: from the gradients of some tensors to an update of their weights, the
// counterparts of runtime/optimizer. Knows no delays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/cuda/kernels/update.h"
#include "runtime/cuda/products.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag::cuda {

/// Tensors that are updated alike, and where their state lies.
struct UpdateGroup {
  std::vector<int> tensors;            ///< places in the stage's layout
  std::vector<int64_t> state_offsets;  ///< of each, in an array of state
  std::vector<int64_t> first_chunks;   ///< of each, among the chunks; one more at the end
  std::vector<UpdateChunk> chunks;
  int64_t state_elements = 0;  ///< of one array
};

/// Tensors of `layout` for which chosen[place] holds.
UpdateGroup MakeGroup(const StageLayout& layout, const std::vector<bool>& chosen);

/// One update of a group.
struct GroupUpdate {
  const UpdateChunk* chunks = nullptr;  ///< the group's, on the device
  UpdateBuffers buffers;
  CorrectionStep correction;
  float rate = 0;
  int64_t number = 1;
};

/// The optimizer of one group.
class UpdateRule {
 public:
  UpdateRule() = default;
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// Arrays of state, named as the parts of the CPU's.
  virtual std::vector<std::string_view> Arrays() const = 0;
  /// What the host keeps under a name, one number for all tensors of the group; null if nothing.
  virtual double* Number(std::string_view /*name*/) { return nullptr; }

  virtual size_t table_bytes() const { return 0; }    ///< constants that Begin writes
  virtual size_t scratch_bytes() const { return 0; }  ///< of use within one update
  /// Forgets what it has seen.
  virtual void Begin(Stream /*stream*/, std::byte* /*tables*/, std::byte* /*scratch*/) {}

  /// `state`: one pointer per array.
  virtual void Update(Stream stream, const GroupUpdate& update,
                      const std::vector<float*>& state) = 0;
};

/// Whether an optimizer does these tensors by a rule of their own.
bool IsOrthogonalised(const OptimizerOptions& options, const StageTensor& tensor);

float WeightDecayOf(const OptimizerOptions& options);
/// Of tensors that are not orthogonalised, by what the course says.
float AuxFactorOf(const OptimizerOptions& options);

/// For tensors that are not orthogonalised. `options` must be those of a device optimizer
/// (CheckDeviceOptimizer).
std::unique_ptr<UpdateRule> MakeElementRule(const OptimizerOptions& options,
                                            const UpdateGroup& group);

/// Newton-Schulz steps are products of T. `group` and `products` are borrowed.
template <class T>
std::unique_ptr<UpdateRule> MakeMuonRule(const OptimizerOptions& options, const StageLayout& layout,
                                         const UpdateGroup& group, Products& products);

}  // namespace pipelag::cuda
