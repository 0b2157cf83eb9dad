// A bar on the terminal while long work goes on; nothing at all where stderr is a pipe or a file.
// Must not know what is worked at.
#pragma once

#include <string>
#include <string_view>

#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

class Progress {
 public:
  Progress(size_t total, std::string_view noun);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One thread at a time.
  void Show(size_t done, std::string_view beside = "");

 private:
  size_t total_;
  std::string noun_;
  bool terminal_;
};

/// --jobs: how many threads; one per core if it is not given.
Flag JobsFlag(std::string_view noun);
int JobsOf(const Arguments& arguments);

}  // namespace pipelag
