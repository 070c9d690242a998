#include "cli/doctor/link_probe.h"

#include "cli/doctor/probe_peers.h"
#include "runtime/services/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <poll.h>
#include <sstream>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace sluice::cli {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkProbe, transport, said_one_sided, found_one_sided, bytes_per_second, problem,
                                   cma_refused, mapping_refused)

namespace {

/// A pair of connected sockets.
struct Sockets {
    Sockets() { ok = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0; }
    ~Sockets() {
        close(0);
        close(1);
    }
    Sockets(const Sockets&) = delete;
    Sockets& operator=(const Sockets&) = delete;
    void close(std::size_t end) {
        if (ends[end] >= 0) {
            ::close(ends[end]);
            ends[end] = -1;
        }
    }
    bool ok = false;
    std::array<int, 2> ends{-1, -1};
};

/// A child that is killed and reaped, whatever happens.
class Child {
public:
    explicit Child(const std::function<void()>& work) {
        const pid_t parent = ::getpid();
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() == parent) {
                work();
            }
            std::_Exit(EXIT_SUCCESS);
        }
    }
    ~Child() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    [[nodiscard]] bool ok() const { return pid_ > 0; }

private:
    pid_t pid_ = -1;
};

void tell(int socket, const LinkProbe& probe) {
    const std::string text =
        nlohmann::json(probe).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    static_cast<void>(::send(socket, text.data(), text.size(), MSG_NOSIGNAL));
}

// All that comes until the other end is closed or the time is up.
std::string receive_until(int socket, std::chrono::steady_clock::time_point deadline) {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
        pollfd readable{socket, POLLIN, 0};
        if (left <= 0 || ::poll(&readable, 1, static_cast<int>(left)) <= 0) {
            return text;
        }
        const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
        if (got <= 0) {
            return text;
        }
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
}

}  // namespace

std::string network_transports(const std::string& allowed) {
    constexpr std::array<std::string_view, 9> kOneHost = {"sm",  "shm",  "mm",    "posix",   "sysv",
                                                          "cma", "knem", "xpmem", "cuda_ipc"};
    if (allowed.empty() || allowed == "all") {
        return "^sm,cuda_ipc";
    }
    if (allowed.front() == '^') {
        return allowed + ",sm,cuda_ipc";
    }
    std::string out;
    std::istringstream names(allowed);
    for (std::string name; std::getline(names, name, ',');) {
        if (name == "cuda") {
            name = "cuda_copy,gdr_copy";  // UCX's name for these and cuda_ipc.
        }
        if (std::ranges::find(kOneHost, name) == kOneHost.end()) {
            out += (out.empty() ? "" : ",") + name;
        }
    }
    return out.empty() ? "self" : out;
}

LinkProbe probe_link(const LinkProbeOptions& options, std::chrono::seconds limit) {
    LinkProbe probe;
    const auto deadline = std::chrono::steady_clock::now() + limit;
    Sockets between;
    Sockets to_us;
    if (!between.ok || !to_us.ok) {
        probe.problem = fmt::format("no sockets: {}", std::generic_category().message(errno));
        return probe;
    }
    // Whichever of the two fails first knows why, and tells; the other only sees that it is gone.
    const Child owner([&] {
        between.close(1);
        to_us.close(0);
        if (const Status status = run_probe_owner(options, between.ends[0]); !status.ok()) {
            LinkProbe failed;
            failed.problem = "owner: " + status.message();
            tell(to_us.ends[1], failed);
        }
    });
    between.close(0);
    const Child reader([&] {
        to_us.close(0);
        run_probe_reader(options, between.ends[1], [&](const LinkProbe& found) {
            tell(to_us.ends[1], found);
            // Where it failed a read may be in flight, for which tearing down would wait.
            if (!found.problem.empty()) {
                std::_Exit(EXIT_SUCCESS);
            }
        });
    });
    between.close(1);
    to_us.close(1);
    if (!owner.ok() || !reader.ok()) {
        probe.problem = fmt::format("no processes: {}", std::generic_category().message(errno));
        return probe;
    }
    const std::string text = receive_until(to_us.ends[0], deadline);
    const nlohmann::json told =
        nlohmann::json::parse(text.substr(0, text.find('\n')), nullptr, /*allow_exceptions=*/false);
    if (!told.is_object()) {
        probe.problem = std::chrono::steady_clock::now() < deadline
                            ? std::string("a process of the probe has ended without a word")
                            : fmt::format("the two processes have not told within {} s what they found", limit.count());
        return probe;
    }
    return told.get<LinkProbe>();
}

}  // namespace sluice::cli
