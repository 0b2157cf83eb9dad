#include "models/architecture/work.h"

#include <algorithm>
#include <cmath>

#include "models/architecture/portion.h"
#include "models/error.h"

namespace pipelag {
namespace {

constexpr int64_t kBytesOfLogit = 4;

/// Sums over a hundred thousand parts stay within 64 bits.
Bytes Rounded(double bytes) {
  constexpr double kMost = 0x1p46;
  if (!(bytes <= kMost)) throw Error("a part of the network would keep or move more than 64 TiB");
  return std::llround(bytes);
}

double Sum(const std::vector<MatrixProduct>& products, double of_weights, double of_others) {
  double flops = 0;
  for (const MatrixProduct& product : products) {
    flops += product.Flops() * (product.weight ? of_weights : of_others);
  }
  return flops;
}

/// Both halves' additions to the residual, with dropout where it is trained with.
Portion Residuals(const Transformer& model, const Block& block, const Sharding& sharding) {
  const auto numbers = static_cast<double>(TokensOf(sharding).own * model.hidden);
  const double bytes = sharding.bytes_per_number;
  const double mask = model.dropout ? 1 : 0;
  Portion residuals;
  const int additions = block.parallel ? 1 : 2;
  for (int i = 0; i < additions; ++i) {
    residuals.Pass((3 * bytes + mask) * numbers, (3 * bytes + mask) * numbers);
  }
  residuals.kept = 2 * mask * numbers;
  return residuals;
}

/// The norms, and what they hand to the products behind them.
Portion Norms(const Transformer& model, const Block& block, const Sharding& sharding) {
  const double vector =
      static_cast<double>(TokensOf(sharding).own * model.hidden * sharding.bytes_per_number);
  Portion norms;
  for (int i = 0; i < block.norms; ++i) norms.Add(Norm(model, sharding));
  // Norms of a parallel block read one vector, and if there is one norm both halves read its
  // result.
  if (block.parallel) norms.kept = vector;
  norms.held = (block.parallel && block.norms == 1 ? 1 : 2) * vector;
  norms.kept += norms.held;
  return norms;
}

/// Attention's result leaves, and the dense MLP is entered and left. The halves of a parallel block
/// leave as one sum; they enter as one vector too if one norm made it. Experts have messages of
/// their own.
void AddMessages(Portion& all, const Transformer& model, const Block& block,
                 const Sharding& sharding) {
  const double bytes =
      static_cast<double>(TokensOf(sharding).tokens * model.hidden * sharding.bytes_per_number);
  all.Leave(sharding, bytes);
  if (block.experts.routed > 0) return;
  if (!block.parallel || block.norms > 1) all.Enter(sharding, bytes);
  if (!block.parallel) all.Leave(sharding, bytes);
}

PartWork Finish(const Portion& all) {
  PartWork work;
  work.products = all.products;
  work.recomputed = all.repeated;
  work.passes_forward = Rounded(all.passes_forward);
  work.passes_backward = Rounded(all.passes_backward);
  work.collectives_forward = all.collectives_forward;
  work.collectives_backward = all.collectives_backward;
  work.kernels_forward = all.kernels;
  work.activation = Rounded(all.kept);
  work.recompute_peak = Rounded(all.widest);
  work.held_for_weight = Rounded(all.held);
  work.parameters = all.parameters;
  work.expert_parameters = all.expert_parameters;
  work.tied_parameters = all.tied_parameters;
  return work;
}

/// Keeps attention's result and those of the first, third, ... product; the collectives whose
/// result would be kept as it is not are repeated.
void KeepAlternate(PartWork& work, const Portion& all, const Portion& core, const Portion& output,
                   Bytes input, bool flash) {
  const Bytes whole = work.activation;
  // What `output` keeps is attention's result; its sums are kept with it, its matrix never.
  double kept = static_cast<double>(input) + output.kept + (flash ? core.kept : 0);
  for (size_t i = 0; i < all.results.size(); ++i) {
    if (i % 2 == 0) {
      kept += all.results[i].bytes;
    } else {
      work.recomputed.push_back(all.results[i].product);
    }
  }
  if (!flash) {
    work.recomputed.insert(work.recomputed.end(), core.products.begin(), core.products.end());
  }
  work.passes_recomputed = Rounded(all.passes_forward - (flash ? core.passes_forward : 0));
  for (const StageCollective& collective : all.collectives_forward) {
    const bool gathers = collective.kind == CollectiveKind::kAllGather ||
                         collective.kind == CollectiveKind::kAllToAll;
    if (gathers) work.collectives_recomputed.push_back(collective);
  }
  work.activation = Rounded(kept);
  work.recompute_peak += std::max<Bytes>(0, whole - work.activation);
}

void Repeat(PartWork& work, const Portion& portion) {
  work.recomputed.insert(work.recomputed.end(), portion.products.begin(), portion.products.end());
  work.passes_recomputed += Rounded(portion.passes_forward);
  work.collectives_recomputed.insert(work.collectives_recomputed.end(),
                                     portion.collectives_forward.begin(),
                                     portion.collectives_forward.end());
}

}  // namespace

double PartWork::ForwardFlops() const { return Sum(products, 1, 1); }
double PartWork::BackwardInputFlops() const { return Sum(products, 1, 2); }
double PartWork::BackwardWeightFlops() const { return Sum(products, 1, 0); }
double PartWork::RecomputedFlops() const { return Sum(recomputed, 1, 1); }

PartWork BlockWork(const Transformer& model, const Block& block, const Sharding& sharding) {
  Portion all = Norms(model, block, sharding);
  all.Add(AttentionInputs(model, block, sharding));
  const Portion core = AttentionCore(model, block, sharding);
  all.Add(core);
  const Portion output = AttentionOutput(model, block, sharding);
  all.Add(output);
  all.Add(block.experts.routed > 0 ? ExpertMlp(model, block, sharding)
                                   : DenseMlp(model, block, sharding));
  all.Add(Residuals(model, block, sharding));
  AddMessages(all, model, block, sharding);

  PartWork work = Finish(all);
  const Bytes input = TokensOf(sharding).own * model.hidden * sharding.bytes_per_number;
  switch (sharding.recompute) {
    case Recompute::kNone:
      break;
    case Recompute::kSelective:
      if (sharding.flash) break;
      Repeat(work, core);
      work.activation -= Rounded(core.kept);
      work.recompute_peak += Rounded(core.kept);
      break;
    case Recompute::kAlternate:
      KeepAlternate(work, all, core, output, input, sharding.flash);
      break;
    case Recompute::kFull:
      Repeat(work, all);
      work.recompute_peak += work.activation - input;
      work.activation = input;
      break;
  }
  return work;
}

PartWork EmbeddingWork(const Transformer& model, const Sharding& sharding) {
  const DeviceTokens device = TokensOf(sharding);
  const int64_t dim = model.table_width();
  const int64_t rows = (model.vocabulary + sharding.tensor - 1) / sharding.tensor;
  const double bytes = sharding.bytes_per_number;
  const auto own = static_cast<double>(device.own);
  const double vector = bytes * own * static_cast<double>(model.hidden);
  Portion all;
  all.parameters = rows * dim;
  // Looked up; the backward adds to the rows of the table's gradient.
  const double looked_up = bytes * static_cast<double>(device.tokens * dim);
  all.Pass(2 * looked_up, 3 * looked_up);
  all.held = looked_up;
  all.Leave(sharding, looked_up);
  if (model.projects()) {
    all.products.push_back({device.own, model.hidden, dim});
    all.parameters += model.hidden * dim;
    all.kernels += 1;
    all.kept += bytes * own * static_cast<double>(dim);
    all.held += vector;
  }
  if (model.positions == PositionKind::kLearned) {
    all.parameters += model.position_rows * model.hidden;
    all.Pass(3 * vector, 2 * vector);
  }
  if (model.embedding_norm) all.Add(Norm(model, sharding));
  if (model.dropout) {
    const double mask = own * static_cast<double>(model.hidden);
    all.Pass(2 * vector + mask, 2 * vector + mask);
    all.kept += mask;
  }
  return Finish(all);
}

PartWork HeadWork(const Transformer& model, const Sharding& sharding) {
  const DeviceTokens device = TokensOf(sharding);
  const int64_t dim = model.table_width();
  const int64_t rows = (model.vocabulary + sharding.tensor - 1) / sharding.tensor;
  const double bytes = sharding.bytes_per_number;
  const auto own = static_cast<double>(device.own);
  Portion all;
  if (model.final_norm) all.Add(Norm(model, sharding));
  if (model.projects()) {
    all.products.push_back({device.own, dim, model.hidden});
    all.parameters += model.hidden * dim;
    all.kernels += 1;
    all.kept += bytes * own * static_cast<double>(model.hidden);
    all.held += bytes * own * static_cast<double>(model.hidden + dim);
  }
  all.Enter(sharding, bytes * static_cast<double>(device.tokens * dim));
  all.products.push_back({device.tokens, rows, dim});
  all.kept += bytes * own * static_cast<double>(dim);
  all.held += bytes * own * static_cast<double>(dim);
  all.parameters += rows * dim + (model.head_bias ? rows : 0);
  all.kernels += 1;
  all.tied_parameters = model.tied ? rows * dim : 0;
  // Logits in 32 bits, the sum of their exponentials, the loss; the backward writes their gradient.
  const double logits = static_cast<double>(device.tokens * rows * kBytesOfLogit);
  all.Pass(3 * logits, 2 * logits);
  all.kept += logits;
  all.held += logits / kBytesOfLogit * bytes;
  // Logits, or their gradient, as they are multiplied; and unless it works in place, in 32 bits the
  // gradients of the loss's result and of the logits. PyTorch's loss over a cut vocabulary holds an
  // exponential more (torch/distributed/tensor/parallel/loss.py).
  const double copies = sharding.loss_in_place ? 0 : sharding.tensor > 1 ? 3 : 2;
  all.widest = std::max(all.widest, copies * logits + logits / kBytesOfLogit * bytes);
  if (sharding.tensor > 1) {
    // The greatest logit, the sum of exponentials and the target's logit of every token.
    const StageCollective per_token = {CollectiveKind::kAllReduce, ShardingGroup::kTensor,
                                       device.tokens * kBytesOfLogit, 3};
    all.collectives_forward.push_back(per_token);
  }
  return Finish(all);
}

namespace {

template <typename Value>
auto SumOf(const NetworkWork& work, Value value) {
  auto sum = value(work.embedding) + value(work.head);
  for (const PartWork& block : work.blocks) sum += value(block);
  return sum;
}

}  // namespace

double NetworkWork::ForwardFlops() const {
  return SumOf(*this, [](const PartWork& part) { return part.ForwardFlops(); });
}
double NetworkWork::BackwardInputFlops() const {
  return SumOf(*this, [](const PartWork& part) { return part.BackwardInputFlops(); });
}
double NetworkWork::BackwardWeightFlops() const {
  return SumOf(*this, [](const PartWork& part) { return part.BackwardWeightFlops(); });
}
double NetworkWork::RecomputedFlops() const {
  return SumOf(*this, [](const PartWork& part) { return part.RecomputedFlops(); });
}
Bytes NetworkWork::Activation() const {
  return SumOf(*this, [](const PartWork& part) { return part.activation; });
}
int64_t NetworkWork::Parameters() const {
  return SumOf(*this, [](const PartWork& part) { return part.parameters; }) - head.tied_parameters;
}

NetworkWork WorkOf(const Transformer& model, const Sharding& sharding) {
  NetworkWork work;
  work.embedding = EmbeddingWork(model, sharding);
  work.blocks.resize(model.blocks.size());
  for (const std::vector<int>& equal : EqualBlocks(model)) {
    const auto first = static_cast<size_t>(equal[0]);
    const PartWork block = BlockWork(model, model.blocks[first], sharding);
    for (const int i : equal) work.blocks[static_cast<size_t>(i)] = block;
  }
  work.head = HeadWork(model, sharding);
  return work;
}

namespace {

/// Every query meets all keys, or as many as the window holds.
void Unmask(PartWork& block, int64_t window, int64_t tokens) {
  const double seen =
      window > 0 && window < tokens ? static_cast<double>(window) / static_cast<double>(tokens) : 1;
  for (MatrixProduct& product : block.products) {
    if (!product.weight) product.masked = 1 - seen;
  }
}

}  // namespace

double ModelFlops(const Transformer& model, int64_t sequences, int64_t tokens,
                  AttentionCount attention) {
  Sharding whole;
  whole.tokens = tokens;
  NetworkWork work = WorkOf(model, whole);
  if (attention == AttentionCount::kFull) {
    for (size_t i = 0; i < work.blocks.size(); ++i) {
      Unmask(work.blocks[i], model.blocks[i].window, tokens);
    }
  }
  return 3 * static_cast<double>(sequences) * work.ForwardFlops();
}

double ModelFlopsPerToken(const Transformer& model, int64_t tokens, AttentionCount attention) {
  return ModelFlops(model, 1, tokens, attention) / static_cast<double>(tokens);
}

}  // namespace pipelag
