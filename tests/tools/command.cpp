// Runs the built `pipelag` binary as a user would: in a fresh folder of its own, with what it
// prints and returns. Knows nothing of the code behind it.
#include "tests/tools/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/error.h"

namespace pipelag {
namespace {

void RedirectTo(const char* file, int descriptor) {
  const int opened = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (opened < 0 || dup2(opened, descriptor) < 0) _exit(126);
}

std::string ReadWhole(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return std::move(content).str();
}

}  // namespace

Workplace::Workplace() {
  std::string pattern = (std::filesystem::temp_directory_path() / "pipelag-test-XXXXXX").string();
  CHECK(mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  std::filesystem::create_directory(folder_ / "work");
}

Workplace::~Workplace() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Outcome Started::Finish() {
  int status = 0;
  CHECK(waitpid(process_, &status, 0) == process_);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), ReadWhole(out_),
          ReadWhole(err_)};
}

Outcome Workplace::Pipelag(std::string_view command) const { return Start(command, {}).Finish(); }

Outcome Workplace::Pipelag(const std::vector<std::string>& words) const {
  std::vector<std::string> all = words;
  all.insert(all.begin(), PIPELAG_BINARY);
  return StartProgram(all, {}).Finish();
}

Started Workplace::Start(std::string_view command,
                         const std::vector<std::string>& variables) const {
  std::istringstream in{std::string(command)};
  std::vector<std::string> words = {PIPELAG_BINARY};
  for (std::string word; in >> word;) words.push_back(word);
  return StartProgram(words, variables);
}

Started Workplace::StartProgram(const std::vector<std::string>& words,
                                const std::vector<std::string>& variables) const {
  std::vector<std::string> owned = words;
  std::vector<char*> arguments;
  for (std::string& word : owned) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string work = folder_ / "work";
  const std::string out = folder_ / ("out" + std::to_string(started_));
  const std::string err = folder_ / ("err" + std::to_string(started_));
  ++started_;
  std::vector<std::string> set = variables;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (chdir(work.c_str()) != 0) _exit(126);
    RedirectTo(out.c_str(), STDOUT_FILENO);
    RedirectTo(err.c_str(), STDERR_FILENO);
    for (std::string& variable : set) putenv(variable.data());
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  return {child, out, err};
}

void Workplace::Write(const std::string& name, std::string_view content) const {
  std::ofstream(folder_ / "work" / name, std::ios::binary) << content;
}

void Workplace::Remove(const std::string& name) const {
  std::filesystem::remove(folder_ / "work" / name);
}

std::string Workplace::Read(const std::string& name) const {
  return ReadWhole(folder_ / "work" / name);
}

std::vector<std::string> Workplace::Files() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "work")) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

nlohmann::json Json(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

size_t Lines(std::string_view text) {
  CHECK(text.empty() || text.back() == '\n');
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace pipelag
