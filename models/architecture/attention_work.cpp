// Attention as one device computes it, with queries, keys and values of its own heads: multi-head,
// grouped-query, and out of a latent vector. Knows nothing of recomputation.
#include <algorithm>

#include "models/architecture/portion.h"
#include "models/error.h"

namespace pipelag {
namespace {

constexpr double kBytesOfSum = 4;  // flash attention keeps one 32-bit figure per query and head

/// Heads of one device, and numbers per head.
struct Heads {
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t query_dim = 0;
  int64_t value_dim = 0;
};

bool IsLatent(const Block& block) { return block.latent.key_value_rank > 0; }

Heads HeadsOf(const Block& block, const Sharding& sharding) {
  const int64_t tensor = sharding.tensor;
  Heads heads;
  heads.queries = Divided(block.heads, tensor, "tensor", "heads");
  if (IsLatent(block)) {
    heads.keys = heads.queries;
    heads.query_dim = block.latent.plain_dim + block.latent.rotary_dim;
    heads.value_dim = block.latent.value_dim;
    return heads;
  }
  const bool copies = tensor > block.key_value_heads && tensor % block.key_value_heads == 0;
  heads.keys =
      copies ? 1 : Divided(block.key_value_heads, tensor, "tensor", "heads of keys and values");
  heads.query_dim = block.head_dim;
  heads.value_dim = block.head_dim;
  return heads;
}

/// Share of all (query, key) pairs that neither mask nor window let a query see.
double MaskedShare(int64_t tokens, int64_t window) {
  const auto all = static_cast<double>(tokens);
  const auto seen = static_cast<double>(window > 0 ? std::min(window, tokens) : tokens);
  const double visible = seen * (seen + 1) / 2 + (all - seen) * seen;
  return 1 - visible / (all * all);
}

Portion LatentInputs(const Transformer& model, const Block& block, const Sharding& sharding) {
  const LatentAttention& latent = block.latent;
  const Heads heads = HeadsOf(block, sharding);
  const DeviceTokens device = TokensOf(sharding);
  const auto own = static_cast<double>(device.own);
  const double bytes = sharding.bytes_per_number;
  Portion inputs;
  int64_t entering = 0;
  const auto compress = [&](int64_t rank, int64_t besides) {
    inputs.Multiply({device.own, rank + besides, model.hidden}, {rank + besides}, bytes);
    inputs.parameters += model.hidden * (rank + besides) + rank;
    if (block.qkv_bias) inputs.parameters += rank + besides;
    const double width = static_cast<double>(rank) * own * bytes;
    inputs.Pass(2 * width, 3 * width);
    inputs.kept += 2 * width;  // before and after its norm
    inputs.held += width + static_cast<double>(rank + besides) * own * bytes;
    inputs.kernels += 1;
    entering += rank + besides;
  };
  const auto expand = [&](int64_t rank, int64_t width) {
    inputs.Multiply({device.tokens, width, rank}, {width}, bytes);
    inputs.parameters += rank * width;
    inputs.held += static_cast<double>(device.tokens * width) * bytes;
    inputs.kernels += 1;
  };
  if (latent.query_rank > 0) {
    compress(latent.query_rank, 0);
    expand(latent.query_rank, heads.queries * heads.query_dim);
  } else {
    entering += model.hidden;
    expand(model.hidden, heads.queries * heads.query_dim);
  }
  compress(latent.key_value_rank, latent.rotary_dim);
  expand(latent.key_value_rank, heads.keys * (latent.plain_dim + latent.value_dim));
  inputs.Enter(sharding, static_cast<double>(device.tokens * entering) * bytes);
  return inputs;
}

Portion HeadInputs(const Transformer& model, const Block& block, const Sharding& sharding) {
  const Heads heads = HeadsOf(block, sharding);
  const DeviceTokens device = TokensOf(sharding);
  const int64_t width = (heads.queries + 2 * heads.keys) * block.head_dim;
  Portion inputs;
  const int64_t key_width = heads.keys * block.head_dim;
  inputs.Multiply({device.tokens, width, model.hidden},
                  {width - 2 * key_width, key_width, key_width}, sharding.bytes_per_number);
  inputs.parameters = model.hidden * width + (block.qkv_bias ? width : 0);
  const double bytes_per_column = static_cast<double>(device.tokens) * sharding.bytes_per_number;
  inputs.held = bytes_per_column * static_cast<double>(width);
  inputs.Widen(sharding, bytes_per_column * static_cast<double>(model.hidden), inputs.held, true);
  inputs.kernels = 1;
  if (block.query_key_norm || block.wide_query_key_norm) {
    const int64_t normed = (heads.queries + heads.keys) * block.head_dim;
    const double bytes = static_cast<double>(device.tokens * normed * sharding.bytes_per_number);
    inputs.parameters += block.query_key_norm ? 2 * block.head_dim : normed;
    inputs.Pass(2 * bytes, 3 * bytes);
    inputs.kept += bytes;
  }
  inputs.Enter(sharding,
               static_cast<double>(device.tokens * model.hidden) * sharding.bytes_per_number);
  return inputs;
}

/// One device hands keys and values on to the next until all have seen them; in the backward their
/// gradients travel along (ring attention, arXiv 2310.01889).
void AddRing(Portion& core, const Sharding& sharding, double key_value_bytes) {
  if (sharding.context == 1) return;
  const double sent = key_value_bytes * (sharding.context - 1);
  const auto ring = [](double bytes) {
    return StageCollective{CollectiveKind::kRing, ShardingGroup::kContext,
                           static_cast<Bytes>(bytes)};
  };
  core.collectives_forward.push_back(ring(sent));
  core.collectives_backward.push_back(ring(2 * sent));
}

}  // namespace

Portion AttentionInputs(const Transformer& model, const Block& block, const Sharding& sharding) {
  const Heads heads = HeadsOf(block, sharding);
  const DeviceTokens device = TokensOf(sharding);
  const double bytes = sharding.bytes_per_number;
  const auto tokens = static_cast<double>(device.tokens);
  Portion inputs =
      IsLatent(block) ? LatentInputs(model, block, sharding) : HeadInputs(model, block, sharding);
  if (model.positions == PositionKind::kNone && !model.alibi) {
    const int64_t rotated = IsLatent(block) ? block.latent.rotary_dim : block.head_dim;
    const double width = static_cast<double>((heads.queries + heads.keys) * rotated);
    inputs.Pass(2 * bytes * tokens * width, 2 * bytes * tokens * width);
  }
  const int64_t kept =
      (heads.queries + heads.keys) * heads.query_dim + heads.keys * heads.value_dim;
  inputs.kept += bytes * tokens * static_cast<double>(kept);
  return inputs;
}

Portion AttentionCore(const Transformer& model, const Block& block, const Sharding& sharding) {
  const Heads heads = HeadsOf(block, sharding);
  const DeviceTokens device = TokensOf(sharding);
  const auto matrices = static_cast<double>(device.sequences * heads.queries);
  const double bytes = sharding.bytes_per_number;
  MatrixProduct scores = {device.queries, device.keys, heads.query_dim, matrices, false};
  MatrixProduct values = {device.queries, heads.value_dim, device.keys, matrices, false};
  Portion core;
  if (sharding.flash) {
    scores.masked = values.masked = MaskedShare(device.keys, block.window);
    scores.writes = values.reads = false;
    core.repeated = {scores};
    core.kernels = 1;
    core.kept = kBytesOfSum * matrices * static_cast<double>(device.queries);
    const int64_t numbers = (heads.queries + heads.keys) * (heads.query_dim + heads.value_dim);
    core.widest = bytes * static_cast<double>(device.tokens * numbers);
  } else {
    const double numbers =
        matrices * static_cast<double>(device.queries) * static_cast<double>(device.keys);
    core.kernels = 2;
    core.Pass(2 * bytes * numbers, 3 * bytes * numbers);
    core.kept = bytes * numbers;
    core.widest = 2 * bytes * numbers;
    if (model.attention_dropout) {
      core.Pass((2 * bytes + 1) * numbers, (2 * bytes + 1) * numbers);
      core.kept += (bytes + 1) * numbers;  // its result and its mask
    }
  }
  core.products = {scores, values};
  if (block.sinks) core.parameters = heads.queries;
  const int64_t key_value = heads.keys * (heads.query_dim + heads.value_dim);
  AddRing(core, sharding, bytes * static_cast<double>(device.tokens * key_value));
  return core;
}

Portion AttentionOutput(const Transformer& model, const Block& block, const Sharding& sharding) {
  const Heads heads = HeadsOf(block, sharding);
  const DeviceTokens device = TokensOf(sharding);
  const int64_t width = heads.queries * heads.value_dim;
  const double bytes = sharding.bytes_per_number;
  Portion output;
  output.Multiply({device.tokens, model.hidden, width}, {model.hidden}, bytes);
  output.parameters = width * model.hidden + (block.output_bias ? model.hidden : 0);
  output.kernels = 1;
  output.kept = bytes * static_cast<double>(device.tokens * width);
  const double result = bytes * static_cast<double>(device.tokens * model.hidden);
  output.held = output.kept + result;
  output.Widen(sharding, output.kept, result, false);
  return output;
}

}  // namespace pipelag
