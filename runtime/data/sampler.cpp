#include "runtime/data/sampler.h"

#include <algorithm>

#include "models/error.h"
#include "models/random.h"

namespace pipelag {
namespace {

// Keeps the samples' random numbers apart from those drawn for other purposes with the same seed.
constexpr uint64_t kSampleStream = 2;

void CopyWindow(const TokenSequence& from, int64_t start, int row, int sequence, Token* tokens,
                Token* targets) {
  const int64_t at = static_cast<int64_t>(row) * sequence;
  if (tokens != nullptr) from.Copy(start, sequence, tokens + at);
  if (targets != nullptr) from.Copy(start + 1, sequence, targets + at);
}

/// Places at which a window of sequence + 1 tokens fits.
int64_t Places(const TokenSequence& tokens, int sequence) {
  const int64_t places = tokens.size() - sequence;
  CHECK(places >= 1);
  return places;
}

}  // namespace

void FillMicrobatch(const Corpus& corpus, uint64_t seed, int64_t microbatch, int batch,
                    int sequence, Token* tokens, Token* targets) {
  const auto places = static_cast<uint64_t>(Places(corpus.train, sequence));
  for (int b = 0; b < batch; ++b) {
    const auto sample = static_cast<uint64_t>(microbatch * batch + b);
    const uint64_t start = UniformBelow(RandomBits(seed, sample, 0, kSampleStream), places);
    CopyWindow(corpus.train, static_cast<int64_t>(start), b, sequence, tokens, targets);
  }
}

void FillValidation(const Corpus& corpus, int64_t index, int64_t count, int batch, int sequence,
                    Token* tokens, Token* targets) {
  CHECK(index >= 0 && index < count);
  const int64_t last_place = Places(corpus.validation, sequence) - 1;
  const int64_t last_window = std::max<int64_t>(count * batch - 1, 1);
  for (int b = 0; b < batch; ++b) {
    const int64_t start = (index * batch + b) * last_place / last_window;
    CopyWindow(corpus.validation, start, b, sequence, tokens, targets);
  }
}

}  // namespace pipelag
