#include "models/cost/part_time.h"

#include <algorithm>
#include <cmath>

namespace pipelag {
namespace {

/// Kernels between two of attention's products without flash: scale, mask, softmax, dropout.
constexpr double kKernelsOfSelective = 5;

/// Of products by a weight whose rows do not begin where tensor cores load from. The one public
/// figure of a single product: padding a vocabulary brought a forward from 14 to 10 ms
/// (PaddlePaddle/models, pull request 5134).
constexpr double kMisaligned = 1.4;

/// 16 bytes of numbers.
int64_t AlignedNumbers(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return 1;  // no tensor cores to be missed
    case Precision::kTf32:
      return 4;
    case Precision::kFp8:
      return 16;
    case Precision::kFp16:
    case Precision::kBf16:
      break;
  }
  return 8;
}

struct Products {
  double forward = 0;
  double input = 0;
  double weight = 0;
  double attention_forward = 0;  ///< of `forward`
  double attention_input = 0;    ///< of `input`
};

class Timer {
 public:
  explicit Timer(const PartSetting& setting) : setting_(setting) {}

  /// How much longer the three products by this weight take.
  double Misaligned(const MatrixProduct& product) const {
    const int64_t aligned = AlignedNumbers(setting_.precision);
    return product.n % aligned == 0 && product.k % aligned == 0 ? 1 : kMisaligned;
  }

  double Product(const MatrixProduct& product) const {
    return ProductSeconds(product, setting_.machine->accelerator, setting_.precision,
                          setting_.flash, *setting_.efficiency);
  }

  Products Sum(const std::vector<MatrixProduct>& products) const {
    Products sum;
    for (const MatrixProduct& product : products) {
      const double longer = product.weight ? Misaligned(product) : 1;
      const double forward = longer * Product(product);
      sum.forward += forward;
      MatrixProduct input = product;  // gradient of the result times the k×n operand
      input.n = product.k;
      input.k = product.n;
      MatrixProduct weight = product;  // the m×k operand times the gradient of the result
      weight.m = product.k;
      weight.k = product.m;
      if (product.weight) {
        sum.input += longer * Product(input) + Casts(product.m * product.n, product.count);
        sum.weight += longer * Product(weight);
        sum.forward += Casts(product.m * product.k, product.count);
        continue;
      }
      const double both = setting_.flash ? 2 * forward : Product(input) + Product(weight);
      sum.input += both;
      sum.attention_forward += forward;
      sum.attention_input += both;
    }
    return sum;
  }

  /// To 8 bits: 16-bit numbers are read, and written once as they are and once transposed for the
  /// weights' gradient.
  double Casts(int64_t numbers, double count) const {
    constexpr double kBytes = 2 + 1 + 1;
    if (setting_.precision != Precision::kFp8) return 0;
    return Passes(static_cast<Bytes>(kBytes * count * static_cast<double>(numbers)));
  }

  double Passes(Bytes bytes) const {
    return PassSeconds(bytes, setting_.machine->accelerator, *setting_.efficiency);
  }

  /// A collective is launched like a kernel, and waits for the last of its members' hosts: the more
  /// there are, the later that is.
  double Calls(const std::vector<StageCollective>& collectives) const {
    double calls = 0;
    for (const StageCollective& collective : collectives) {
      calls += collective.count * (1 + std::log2(GroupOf(collective.group).members)) / 2;
    }
    return calls;
  }

  double Gaps(double kernels) const { return kernels * setting_.efficiency->kernel; }

  double Exchange(const std::vector<StageCollective>& collectives) const {
    double time = 0;
    for (const StageCollective& collective : collectives) {
      if (collective.group == ShardingGroup::kExpert) time += Time(collective);
    }
    return time;
  }

  /// Collectives that nothing hides, rings as far as `attention` does not, and those of tensor
  /// parallelism as far as `products` do not.
  double Collectives(const std::vector<StageCollective>& collectives, double attention,
                     double products) const {
    double shown = 0;
    double rings = 0;
    double beside = 0;
    for (const StageCollective& collective : collectives) {
      const double time = Time(collective);
      if (collective.kind == CollectiveKind::kRing) {
        rings += time;
      } else if (setting_.overlap_tensor && collective.group == ShardingGroup::kTensor) {
        beside += time;
      } else {
        shown += time;
      }
    }
    const double hidden = std::min(setting_.efficiency->overlap * beside, products);
    return shown + beside - hidden + std::max(0.0, rings - attention);
  }

 private:
  double Time(const StageCollective& collective) const {
    return collective.count * CollectiveSeconds(collective.kind, collective.bytes,
                                                GroupOf(collective.group), *setting_.machine,
                                                *setting_.efficiency);
  }

  const RankGroup& GroupOf(ShardingGroup group) const {
    switch (group) {
      case ShardingGroup::kTensor:
        return setting_.groups.tensor;
      case ShardingGroup::kContext:
        return setting_.groups.context;
      case ShardingGroup::kExpert:
        break;
    }
    return setting_.groups.expert;
  }

  const PartSetting& setting_;
};

}  // namespace

PartSeconds& PartSeconds::operator+=(const PartSeconds& other) {
  forward += other.forward;
  input += other.input;
  weight += other.weight;
  again += other.again;
  exchange_forward += other.exchange_forward;
  exchange_backward += other.exchange_backward;
  forward_kernels += other.forward_kernels;
  again_kernels += other.again_kernels;
  return *this;
}

PartSeconds SecondsOf(const PartWork& work, const PartSetting& setting) {
  const Timer timer(setting);
  const double factor = setting.efficiency->compute_factor;
  const Products products = timer.Sum(work.products);
  PartSeconds seconds;
  seconds.forward_kernels = work.kernels_forward + timer.Calls(work.collectives_forward);
  if (!work.recomputed.empty() || work.passes_recomputed > 0) {
    switch (setting.recompute) {
      case Recompute::kNone:
        break;  // repeated inside a kernel of the backward
      case Recompute::kSelective:
        seconds.again_kernels = setting.flash ? 0 : kKernelsOfSelective;
        break;
      case Recompute::kAlternate:
      case Recompute::kFull:
        seconds.again_kernels = work.kernels_forward + timer.Calls(work.collectives_recomputed);
        break;
    }
  }
  const double gaps = timer.Gaps(work.kernels_forward);
  seconds.forward = factor * (products.forward + timer.Passes(work.passes_forward) + gaps) +
                    timer.Collectives(work.collectives_forward, factor * products.attention_forward,
                                      factor * products.forward);
  seconds.input = factor * (products.input + timer.Passes(work.passes_backward) + gaps) +
                  timer.Collectives(work.collectives_backward, factor * products.attention_input,
                                    factor * products.input);
  seconds.weight = factor * (products.weight + gaps / 2);
  const Products again = timer.Sum(work.recomputed);
  seconds.again = factor * (again.forward + timer.Passes(work.passes_recomputed) +
                            timer.Gaps(seconds.again_kernels)) +
                  timer.Collectives(work.collectives_recomputed, factor * again.attention_forward,
                                    factor * again.forward);
  seconds.exchange_forward = timer.Exchange(work.collectives_forward);
  seconds.exchange_backward =
      timer.Exchange(work.collectives_backward) + timer.Exchange(work.collectives_recomputed);
  return seconds;
}

double HostSeconds(double kernels, const Efficiency& efficiency) {
  return kernels * efficiency.launch;
}

}  // namespace pipelag
