// Runs the built `pipelag` binary as a user would: in a fresh folder of its own, with what it
// prints and returns. Knows nothing of the code behind it.
#include "tests/tools/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
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

/// Of the command with the binary in front.
std::vector<std::string> Words(std::string_view command) {
  std::istringstream in{std::string(command)};
  std::vector<std::string> words = {PIPELAG_BINARY};
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// `prepare` is done in the new process. The program is looked for on the path.
template <class Prepare>
pid_t Launch(const std::filesystem::path& folder, std::vector<std::string> words, Prepare prepare) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (chdir(folder.c_str()) != 0) _exit(126);
    prepare();
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  return child;
}

int Wait(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
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
  const int status = Wait(process_);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), ReadWhole(out_),
          ReadWhole(err_)};
}

void Started::WaitUntilHeldUp() const {
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", process_);
  const std::string write = fmt::format("{} ", SYS_write);
  for (int i = 0; i < 60'000; ++i) {
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      if (ReadWhole(task.path() / "syscall").starts_with(write)) return;
    }
    usleep(1000);
  }
  ADD_FAILURE() << "it never was";
}

Outcome Started::FinishOrKill() {
  for (int i = 0; i < 6000; ++i) {
    siginfo_t ended{};
    CHECK(waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0);
    if (ended.si_pid != 0) return Finish();
    usleep(10'000);
  }
  CHECK(kill(process_, SIGKILL) == 0);
  return Finish();
}

Pipe::Pipe(const std::filesystem::path& file) {
  constexpr int kPage = 4096;
  CHECK(mkfifo(file.c_str(), 0600) == 0);
  descriptor_ = open(file.c_str(), O_RDWR | O_CLOEXEC);
  CHECK(fcntl(descriptor_, F_SETPIPE_SZ, kPage) > 0);
}

Pipe::~Pipe() { close(descriptor_); }

Outcome Workplace::Pipelag(std::string_view command) const {
  return StartProgram(Words(command), {}).Finish();
}

Outcome Workplace::Pipelag(const std::vector<std::string>& words) const {
  std::vector<std::string> all = words;
  all.insert(all.begin(), PIPELAG_BINARY);
  return StartProgram(all, {}).Finish();
}

Started Workplace::Start(std::string_view command,
                         const std::vector<std::string>& variables) const {
  return StartProgram(Words(command), variables);
}

Started Workplace::StartProgram(const std::vector<std::string>& words,
                                const std::vector<std::string>& variables) const {
  const std::string out = Under(("out" + std::to_string(started_)).c_str());
  const std::string err = Under(("err" + std::to_string(started_)).c_str());
  ++started_;
  std::vector<std::string> set = variables;
  const pid_t child = Launch(Under("work"), words, [&] {
    RedirectTo(out.c_str(), STDOUT_FILENO);
    RedirectTo(err.c_str(), STDERR_FILENO);
    for (std::string& variable : set) putenv(variable.data());
  });
  return {child, out, err};
}

Outcome Workplace::PipelagOnFullDisk(std::string_view command, size_t most_bytes) const {
  const std::string out = Under("out");
  const std::string err = Under("err");
  const int status = Wait(Launch(Under("work"), Words(command), [&] {
    RedirectTo(out.c_str(), STDOUT_FILENO);
    RedirectTo(err.c_str(), STDERR_FILENO);
    const rlimit limit = {most_bytes, most_bytes};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(126);
  }));
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadWhole(out), ReadWhole(err)};
}

std::string Workplace::PipelagOnTerminal(std::string_view command) const {
  int terminal = -1;
  int program_end = -1;
  CHECK(openpty(&terminal, &program_end, nullptr, nullptr, nullptr) == 0);
  const pid_t child = Launch(Under("work"), Words(command), [&] {
    RedirectTo("/dev/null", STDOUT_FILENO);
    if (dup2(program_end, STDERR_FILENO) < 0) _exit(126);
  });
  close(program_end);
  std::string shown;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(terminal, buffer, sizeof buffer)) > 0;) {
    shown.append(buffer, static_cast<size_t>(n));
  }
  close(terminal);
  Wait(child);
  return shown;
}

bool Workplace::PipelagKilled(std::string_view command, const std::string& file,
                              size_t lines) const {
  const pid_t child = Launch(Under("work"), Words(command), [&] {
    RedirectTo("/dev/null", STDOUT_FILENO);
    RedirectTo("/dev/null", STDERR_FILENO);
  });
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    const std::string content = Read(file);
    if (static_cast<size_t>(std::count(content.begin(), content.end(), '\n')) >= lines) {
      CHECK(kill(child, SIGKILL) == 0);
      status = Wait(child);
      break;
    }
    usleep(200);
  }
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

void Workplace::Write(const std::string& name, std::string_view content) const {
  std::ofstream(folder_ / "work" / name, std::ios::binary) << content;
}

void Workplace::Remove(const std::string& name) const {
  std::filesystem::remove_all(folder_ / "work" / name);
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

std::vector<std::string> Workplace::AllFiles() const {
  std::vector<std::string> names;
  // Folders may go meanwhile.
  std::error_code gone;
  for (std::filesystem::recursive_directory_iterator entry(folder_ / "work", gone), end;
       !gone && entry != end; entry.increment(gone)) {
    names.push_back(entry->path());
  }
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
