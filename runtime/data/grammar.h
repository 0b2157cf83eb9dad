// A built-in corpus that needs no file: sentences of invented words from a small random grammar
// whose entropy is known exactly, so that a loss can be held against the best possible one. Knows
// no network.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/corpus.h"

namespace pipelag {

/// A Markov chain over word classes; each class draws its word independently. All words of all
/// classes differ, have no space inside and end in one, so that the bytes parse in exactly one way.
struct Grammar {
  struct Word {
    std::string text;
    double probability = 0;  ///< within its class; Zipf's: proportional to 1 / rank
  };
  std::vector<std::vector<Word>> classes;
  std::vector<std::vector<double>> transitions;  ///< [class][next class]; rows add up to 1
  int start = 0;  ///< the class before the first word: that of the full stops
};

/// Eight classes (articles, adjectives, nouns, …) with a fixed chain and about a hundred words
/// whose spelling follows from the seed.
Grammar MakeGrammar(uint64_t seed);

/// Entropy rate in nats per byte. Words and bytes are in bijection, hence it is entropy per word
/// over mean bytes per word: Σ_c π_c (H(next class | c) + H(word | c)) / Σ_c π_c E[length | c],
/// with π the stationary distribution of the chain (Cover, Thomas, "Elements of Information
/// Theory", 4.2).
double EntropyRate(const Grammar& grammar);

/// The first `bytes` bytes of the text that follows from `seed`; the last word may be cut.
std::vector<uint8_t> Speak(const Grammar& grammar, uint64_t seed, int64_t bytes);

/// MakeGrammar and Speak with one seed, cut into parts, with the entropy rate. Throws Error as
/// CutCorpus does.
Corpus GrammarCorpus(uint64_t seed, int sequence, int64_t bytes = 400'000);

}  // namespace pipelag
