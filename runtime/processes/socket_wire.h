// A connection between every two processes of a run, over TCP. Knows nothing but bytes.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/processes/socket.h"
#include "runtime/processes/wire.h"

namespace pipelag {

/// Rank 0 listens at `host`:`port`; the others tell it where they listen, it tells all of them, and
/// everybody calls those of lower rank. Throws Error as OpenWire does.
std::unique_ptr<Wire> OpenSocketWire(int rank, int size, const std::string& host, int port,
                                     std::chrono::seconds patience);

/// Rank 0 takes a free port and says so in `file`, which it removes once all are there; a file that
/// an earlier run has left is replaced, and names nobody who answers.
std::unique_ptr<Wire> OpenSocketWire(int rank, int size, const std::filesystem::path& file,
                                     std::chrono::seconds patience);

/// Over connections that there are already, by rank of the other end; the own one is not looked at.
std::unique_ptr<Wire> WireOver(int rank, std::vector<Socket> sockets);

}  // namespace pipelag
