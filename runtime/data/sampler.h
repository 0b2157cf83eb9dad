// Which tokens of a corpus a micro-batch consists of: a pure function of a seed and a number, so
// that first and last stage, every partition and every schedule see the same data without
// exchanging it.
#pragma once

#include <cstdint>

#include "runtime/data/corpus.h"

namespace pipelag {

/// Micro-batch number `microbatch` of the run (global, from 0) out of corpus.train: B = batch
/// windows of sequence + 1 tokens, each at a uniformly drawn place that depends on the seed and on
/// the sample's global number microbatch · B + b only. `tokens` gets the first `sequence` tokens of
/// each window, `targets` the last; both (B, T). Either may be null.
void FillMicrobatch(const Corpus& corpus, uint64_t seed, int64_t microbatch, int batch,
                    int sequence, Token* tokens, Token* targets);

/// Micro-batch `index` of `count` for validation, out of corpus.validation: the count · B windows
/// start at even distances from its beginning to its last full window, and overlap where the part
/// is short. Otherwise as above.
void FillValidation(const Corpus& corpus, int64_t index, int64_t count, int batch, int sequence,
                    Token* tokens, Token* targets);

}  // namespace pipelag
