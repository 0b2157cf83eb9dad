// What whatever goes wrong comes to: a sentence on stderr and an exit code. Must not know what any
// subcommand does.
#include "tools/failure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

#include "models/error.h"
#include "models/file.h"
#include "models/schedule/schedule.h"
#include "runtime/processes/notes.h"

namespace pipelag {

int ReportFailure(const std::exception_ptr& failure) {
  constexpr int kBadInput = 2;
  constexpr int kOurBug = 3;
  const auto fail = [](int code, std::string_view message) {
    fmt::print(stderr, "pipelag: {}\n", message);
    return code;
  };
  try {
    std::rethrow_exception(failure);
  } catch (const StoppedByPeer&) {
    return kBadInput;
  } catch (const ScheduleError& error) {
    fail(kBadInput, error.what());
    if (!error.grid().empty()) fmt::print(stderr, "{}\n", error.grid());
    return kBadInput;
  } catch (const Error& error) {
    return fail(kBadInput, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(kBadInput, fmt::format("{}: {}", error.path1().string(), error.code().message()));
  } catch (const std::system_error& error) {
    return fail(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kBadInput, "there is not enough memory for a run of this size");
  } catch (const std::exception& error) {
    return fail(kOurBug, fmt::format("this is a bug of pipelag itself: {}", error.what()));
  }
}

void EndProcess(const std::exception_ptr& failure) {
  // Whoever shows how far the run has come will not clear the line any more.
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r\x1b[K");
  const int code = ReportFailure(failure);
  RemoveUnfinishedFiles();
  _exit(code);
}

}  // namespace pipelag
