#include "runtime/cuda/stage/places.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "models/error.h"
#include "runtime/cuda/kernels/embedding.h"
#include "runtime/cuda/kernels/norm.h"
#include "runtime/cuda/stage/linear.h"
#include "runtime/device/device_stage.h"

namespace pipelag::cuda {
namespace {

/// Elements: 128 bytes of bf16, a whole number of the widest loads.
constexpr int64_t kLogitAlignment = 64;

/// Of everything by name.
struct Sizes {
  int64_t rows;
  int64_t cols;
  int64_t inner;
  int64_t hidden;  ///< of SwiGLU twice the inner size
  int64_t qkv;
  int64_t heads;
  int64_t logit_stride;
  size_t element_bytes;

  size_t Values(int64_t elements) const { return static_cast<size_t>(elements) * element_bytes; }
  size_t Floats(int64_t elements) const { return static_cast<size_t>(elements) * sizeof(float); }

  size_t Of(BlockResult result) const {
    switch (result) {
      case kMean1:
      case kDeviation1:
      case kMean2:
      case kDeviation2:
        return Floats(rows);
      case kLogSums:
        return Floats(rows * heads);
      case kNorm1:
      case kAttended:
      case kMiddle:
      case kNorm2:
        return Values(rows * cols);
      case kQkv:
        return Values(rows * qkv);
      case kHidden:
        return Values(rows * hidden);
      case kActivated:
        return Values(rows * inner);
      case kBlockResults:
        break;
    }
    CHECK(false);
  }
  size_t Of(BlockGradient gradient) const {
    if (gradient == kOfHidden) return Of(kHidden);
    if (gradient == kOfQkv) return Of(kQkv);
    return Of(kMiddle);
  }
  size_t Of(HeadResult result) const {
    if (result == kLogitGradient) return Values(rows * logit_stride);
    return result == kFinalNorm ? Values(rows * cols) : Floats(rows);
  }
};

Sizes SizesOf(const NetworkShape& shape, int64_t batch, size_t element_bytes) {
  const int64_t vocabulary = shape.vocabulary;
  return {.rows = batch * shape.sequence,
          .cols = shape.hidden,
          .inner = shape.inner_size(),
          .hidden = shape.inner_size() * (shape.mlp == MlpChoice::kSwiGlu ? 2 : 1),
          .qkv = shape.hidden + 2 * shape.kv_size(),
          .heads = shape.heads,
          .logit_stride = (vocabulary + kLogitAlignment - 1) / kLogitAlignment * kLogitAlignment,
          .element_bytes = element_bytes};
}

/// A result for the backward in one, and for that in halves; dropped ones are in `scratch`.
std::pair<Place, Place> PlaceResult(bool dropped, bool weights_need, size_t bytes, size_t scratch,
                                    StagePlaces& places) {
  if (!dropped) {
    const Place stays{Place::In::kSlot, places.slot.Take(bytes)};
    return {stays, stays};
  }
  const Place passing{Place::In::kScratch, scratch};
  if (!weights_need) return {passing, passing};
  return {passing, {Place::In::kKept, places.kept.Take(bytes)}};
}

void PlaceBlocks(const Sizes& sizes, int layers, Recompute recompute, StagePlaces& places) {
  // Blocks are computed again one at a time, in the same scratch.
  std::array<size_t, kBlockResults> scratch{};
  for (uint8_t r = 0; r < kBlockResults; ++r) {
    const auto result = static_cast<BlockResult>(r);
    if (IsDropped(result, recompute)) scratch[r] = places.scratch.Take(sizes.Of(result));
  }
  for (int layer = 0; layer < layers; ++layer) {
    places.streams.push_back({Place::In::kSlot, places.slot.Take(places.boundary_bytes)});
    auto& whole = places.whole.blocks.emplace_back();
    auto& halves = places.halves.blocks.emplace_back();
    for (uint8_t r = 0; r < kBlockResults; ++r) {
      const auto result = static_cast<BlockResult>(r);
      std::tie(whole[r], halves[r]) = PlaceResult(IsDropped(result, recompute), WeightsNeed(result),
                                                  sizes.Of(result), scratch[r], places);
    }
    places.kept_outputs.push_back(places.kept.Take(places.boundary_bytes));
    auto& gradients = places.kept_gradients.emplace_back();
    for (uint8_t g = 0; g < kBlockGradients; ++g) {
      gradients[g] = places.kept.Take(sizes.Of(static_cast<BlockGradient>(g)));
    }
  }
}

void PlaceHead(const Sizes& sizes, Recompute recompute, StagePlaces& places) {
  places.streams.push_back({Place::In::kSlot, places.slot.Take(places.boundary_bytes)});
  for (uint8_t r = 0; r < kHeadResults; ++r) {
    const auto result = static_cast<HeadResult>(r);
    const bool dropped = IsDropped(result, recompute);
    const size_t scratch = dropped ? places.scratch.Take(sizes.Of(result)) : 0;
    std::tie(places.whole.head[r], places.halves.head[r]) =
        PlaceResult(dropped, true, sizes.Of(result), scratch, places);
  }
  places.kept_final_norm = places.kept.Take(places.boundary_bytes);
  places.scratch_at.log_sums = places.scratch.Take(sizes.Floats(sizes.rows));
  places.scratch_at.row_losses =
      places.scratch.Take(static_cast<size_t>(sizes.rows) * sizeof(double));
  places.scratch_at.unread_loss = places.scratch.Take(sizeof(double));
}

void PlaceScratch(const Sizes& sizes, StagePlaces& places) {
  ScratchPlaces& at = places.scratch_at;
  for (uint8_t g = 0; g < kBlockGradients; ++g) {
    at.block_gradients[g] = places.scratch.Take(sizes.Of(static_cast<BlockGradient>(g)));
  }
  for (size_t& offset : at.stream_gradients) offset = places.scratch.Take(places.boundary_bytes);
  at.narrow = places.scratch.Take(places.boundary_bytes);
  if (sizes.hidden != sizes.inner) at.activated = places.scratch.Take(sizes.Of(kActivated));
  at.row_dots = places.scratch.Take(sizes.Of(kLogSums));
  at.norm_sums = places.scratch.Take(sizes.Floats(NormScratch(sizes.rows, sizes.cols)));
  const int64_t widest = std::max({sizes.cols, sizes.qkv, sizes.hidden});
  at.column_sums = places.scratch.Take(sizes.Floats(LinearScratch(sizes.rows, widest)));
}

}  // namespace

size_t BytePlaces::Take(size_t bytes) {
  constexpr size_t kAlignment = DeviceStage::kAlignment;
  const size_t offset = next_;
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

bool IsDropped(BlockResult result, Recompute recompute) {
  if (recompute != Recompute::kSelective) return recompute == Recompute::kFull;
  return result != kQkv && result != kLogSums && result != kAttended && result != kMiddle &&
         result != kHidden;
}

bool IsDropped(HeadResult result, Recompute recompute) {
  if (recompute != Recompute::kSelective) return recompute == Recompute::kFull;
  return result != kLogitGradient;
}

bool WeightsNeed(BlockResult result) {
  return result != kQkv && result != kLogSums && result != kHidden;
}

StagePlaces PlaceStage(const NetworkShape& shape, LayerRange range, int64_t batch,
                       Recompute recompute, size_t element_bytes) {
  const Sizes sizes = SizesOf(shape, batch, element_bytes);
  StagePlaces places;
  BytePlaces boundary;
  boundary.Take(sizes.Values(sizes.rows * sizes.cols));
  places.boundary_bytes = boundary.size();
  places.logit_stride = sizes.logit_stride;
  PlaceBlocks(sizes, range.last - range.first, recompute, places);
  PlaceScratch(sizes, places);
  if (range.first == 0) {
    places.kept_input = places.kept.Take(places.boundary_bytes);
    places.scratch_at.embed = places.scratch.Take(EmbedScratchBytes(sizes.rows));
  }
  if (range.last == shape.layers) PlaceHead(sizes, recompute, places);
  return places;
}

}  // namespace pipelag::cuda
