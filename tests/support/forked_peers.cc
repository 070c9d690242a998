#include "tests/support/forked_peers.h"

#include "tests/support/log_guard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <poll.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace sluice::test {
namespace {

constexpr std::size_t kAddressGap = std::size_t{2} << 30;

using Clock = ForkedPeers::Clock;
constexpr Clock::time_point kNever = Clock::time_point::max();

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

int milliseconds_until(Clock::time_point deadline) {
    if (deadline == kNever) {
        return -1;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
}

// False when the other side is gone.
bool write_all(int fd, const void* data, std::size_t size) {
    const auto* at = static_cast<const std::byte*>(data);
    while (size > 0) {
        const ssize_t written = ::send(fd, at, size, MSG_NOSIGNAL);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return false;
        }
        at += written;
        size -= static_cast<std::size_t>(written);
    }
    return true;
}

// False when the other side is gone or the deadline passed.
bool read_all(int fd, void* data, std::size_t size, Clock::time_point deadline) {
    auto* at = static_cast<std::byte*>(data);
    while (size > 0) {
        pollfd readable{fd, POLLIN, 0};
        const int ready = ::poll(&readable, 1, milliseconds_until(deadline));
        if (ready == 0) {
            return false;
        }
        const ssize_t got = ready < 0 ? -1 : ::read(fd, at, size);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        size -= static_cast<std::size_t>(got);
    }
    return true;
}

bool write_blob(int fd, const Blob& blob) {
    const std::uint64_t size = blob.size();
    return write_all(fd, &size, sizeof(size)) && write_all(fd, blob.data(), blob.size());
}

std::optional<Blob> read_blob(int fd, Clock::time_point deadline) {
    std::uint64_t size = 0;
    if (!read_all(fd, &size, sizeof(size), deadline)) {
        return std::nullopt;
    }
    Blob blob(size);
    if (!read_all(fd, blob.data(), blob.size(), deadline)) {
        return std::nullopt;
    }
    return blob;
}

struct SocketPair {
    SocketPair() {
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
            fail("socketpair");
        }
    }
    int ends[2];
};

int run_body(const ForkedPeers::Body& body, PeerChannel& channel) {
    int code = 0;
    try {
        code = body(channel);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "peer %d threw: %s\n", channel.rank(), error.what());
        code = ForkedPeers::kThrew;
    }
    report_unexpected_log_lines();
    if (code == 0 && testing::Test::HasFailure()) {
        code = ForkedPeers::kFailedExpectations;
    }
    return code;
}

}  // namespace

Blob to_blob(std::string_view text) {
    Blob blob(text.size());
    std::memcpy(blob.data(), text.data(), text.size());
    return blob;
}

std::string to_text(const Blob& blob) { return {reinterpret_cast<const char*>(blob.data()), blob.size()}; }

std::vector<std::optional<Blob>> PeerChannel::all_gather(const Blob& mine) {
    std::vector<std::optional<Blob>> blobs(peers_.size());
    // Every peer goes through the others in the order of rank, and of two the lower one writes first: the first
    // unfinished pair in lexicographic order can always go on, so large blobs cannot block each other.
    for (int other = 0; other < size(); ++other) {
        const auto index = static_cast<std::size_t>(other);
        if (other == rank_) {
            blobs[index] = mine;
        } else if (rank_ < other) {
            write_blob(peers_[index], mine);
            blobs[index] = read_blob(peers_[index], kNever);
        } else {
            blobs[index] = read_blob(peers_[index], kNever);
            write_blob(peers_[index], mine);
        }
    }
    return blobs;
}

void PeerChannel::send_to_test(const Blob& blob) { write_blob(test_, blob); }

std::optional<Blob> PeerChannel::receive_from_test() { return read_blob(test_, kNever); }

std::string PeerExit::describe() const {
    if (code == ForkedPeers::kFailedExpectations) {
        return "expectations failed in it";
    }
    if (code) {
        return "exit code " + std::to_string(*code);
    }
    if (signal) {
        return std::string("signal ") + ::strsignal(*signal);
    }
    return "not started";
}

ForkedPeers::ForkedPeers(int count, const Body& body, Clock::duration deadline)
    : ForkedPeers(std::vector<Body>(static_cast<std::size_t>(count), body), deadline) {}

ForkedPeers::ForkedPeers(const std::vector<Body>& bodies, Clock::duration deadline)
    : peers_(bodies.size()), deadline_(Clock::now() + deadline) {
    const std::size_t count = bodies.size();
    std::vector<std::vector<int>> mesh(count, std::vector<int>(count, -1));
    std::vector<SocketPair> to_test(count);
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t j = i + 1; j < count; ++j) {
            const SocketPair pair;
            mesh[i][j] = pair.ends[0];
            mesh[j][i] = pair.ends[1];
        }
    }
    std::fflush(nullptr);  // or the children would print what is buffered once more
    const pid_t test = ::getpid();
    for (std::size_t i = 0; i < count; ++i) {
        const pid_t pid = ::fork();
        if (pid < 0) {
            fail("fork");
        }
        if (pid == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() != test) {
                std::_Exit(EXIT_FAILURE);
            }
            // Only with one copy of an end left does the other side see it close.
            for (std::size_t a = 0; a < count; ++a) {
                for (const int fd : mesh[a]) {
                    if (a != i && fd >= 0) {
                        ::close(fd);
                    }
                }
                ::close(to_test[a].ends[0]);
                if (a != i) {
                    ::close(to_test[a].ends[1]);
                }
            }
            // Processes that are started apart do not have their stacks at the same addresses; forked ones would, and UCX
            // 1.22 (its probe for CMA) reads a peer at the address of a variable of its own into that variable.
            if (::mmap(nullptr, (i + 1) * kAddressGap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) ==
                MAP_FAILED) {
                fail("mmap");
            }
            PeerChannel channel;
            channel.rank_ = static_cast<int>(i);
            channel.test_ = to_test[i].ends[1];
            channel.peers_ = mesh[i];
            const int code = run_body(bodies[i], channel);
            std::fflush(nullptr);
            // Not _Exit: sanitizers report at exit.
            std::exit(code);
        }
        peers_[i].pid = pid;
        peers_[i].channel = to_test[i].ends[0];
    }
    for (std::size_t i = 0; i < count; ++i) {
        ::close(to_test[i].ends[1]);
        for (const int fd : mesh[i]) {
            if (fd >= 0) {
                ::close(fd);
            }
        }
    }
}

ForkedPeers::~ForkedPeers() {
    for (int rank = 0; rank < size(); ++rank) {
        kill(rank);
        ::close(peers_[static_cast<std::size_t>(rank)].channel);
    }
}

void ForkedPeers::send(int rank, const Blob& blob) {
    write_blob(peers_.at(static_cast<std::size_t>(rank)).channel, blob);
}

std::optional<Blob> ForkedPeers::receive(int rank) {
    return read_blob(peers_.at(static_cast<std::size_t>(rank)).channel, deadline_);
}

void ForkedPeers::reap(Peer& peer, int options) {
    if (peer.exit) {
        return;
    }
    int status = 0;
    pid_t reaped = 0;
    do {
        reaped = ::waitpid(peer.pid, &status, options);
    } while (reaped < 0 && errno == EINTR);
    if (reaped < 0) {
        fail("waitpid");
    }
    if (reaped == 0) {
        return;
    }
    PeerExit exit;
    if (WIFEXITED(status)) {
        exit.code = WEXITSTATUS(status);
    } else {
        exit.signal = WTERMSIG(status);
    }
    peer.exit = exit;
}

void ForkedPeers::kill(int rank, int signal) {
    Peer& peer = peers_.at(static_cast<std::size_t>(rank));
    if (peer.exit) {
        return;
    }
    ::kill(peer.pid, signal);
    if (signal == SIGKILL) {
        reap(peer, 0);
    }
}

PeerExit ForkedPeers::wait(int rank) {
    Peer& peer = peers_.at(static_cast<std::size_t>(rank));
    if (!peer.exit) {
        // A descriptor of the process becomes readable at its end: the one way to wait for it with a deadline.
        const int handle = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
        if (handle < 0) {
            fail("pidfd_open");
        }
        pollfd ended{handle, POLLIN, 0};
        int ready = 0;
        do {
            ready = ::poll(&ended, 1, milliseconds_until(deadline_));
        } while (ready < 0 && errno == EINTR);
        ::close(handle);
        if (ready == 0) {
            peer.overdue = true;
            ::kill(peer.pid, SIGKILL);
        }
        reap(peer, 0);
    }
    return *peer.exit;
}

bool ForkedPeers::wait_all_ok(const std::vector<int>& killed) {
    bool all_ok = true;
    for (int rank = 0; rank < size(); ++rank) {
        const PeerExit exit = wait(rank);
        if (std::find(killed.begin(), killed.end(), rank) != killed.end()) {
            continue;
        }
        if (!exit.ok()) {
            all_ok = false;
            ADD_FAILURE() << "peer " << rank << ": " << exit.describe()
                          << (peers_[static_cast<std::size_t>(rank)].overdue ? " after its deadline" : "");
        }
    }
    return all_ok;
}

}  // namespace sluice::test
