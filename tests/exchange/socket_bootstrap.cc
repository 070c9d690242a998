#include "tests/exchange/socket_bootstrap.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace sluice::test {
namespace {

class SocketBootstrap final : public Bootstrap {
public:
    SocketBootstrap(int rank, std::vector<int> sockets) : rank_(rank), sockets_(std::move(sockets)) {}
    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return static_cast<int>(sockets_.size()); }

protected:
    // The plans of small models fit the sockets' buffers, and the peers read; so a blocking send does.
    Status start_send(int to, Message message) override {
        const ssize_t sent =
            ::send(sockets_[static_cast<std::size_t>(to)], message->data(), message->size(), MSG_NOSIGNAL);
        return sent == static_cast<ssize_t>(message->size())
                   ? ok_status()
                   : internal_error(std::string("send: ") + std::strerror(errno));
    }
    Result<std::optional<Received>> poll() override {
        for (int from = 0; from < size(); ++from) {
            const int socket = sockets_[static_cast<std::size_t>(from)];
            const ssize_t size = from == rank_ ? -1 : ::recv(socket, nullptr, 0, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
            if (size > 0) {
                auto message = std::make_shared<Blob>(static_cast<std::size_t>(size));
                if (::recv(socket, message->data(), message->size(), 0) != size) {
                    return internal_error("a message came cut");
                }
                return std::optional(Received{from, std::move(message)});
            }
        }
        return std::optional<Received>();
    }
    bool sends_done() override { return true; }
    void pause(int /*tries*/) override { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

private:
    int rank_;
    std::vector<int> sockets_;
};

}  // namespace

SocketMesh::SocketMesh(int ranks)
    : sockets_(static_cast<std::size_t>(ranks), std::vector<int>(static_cast<std::size_t>(ranks), -1)) {
    for (std::size_t a = 0; a < sockets_.size(); ++a) {
        for (std::size_t b = a + 1; b < sockets_.size(); ++b) {
            int pair[2];
            if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
                throw std::runtime_error(std::string("socketpair: ") + std::strerror(errno));
            }
            sockets_[a][b] = pair[0];
            sockets_[b][a] = pair[1];
        }
    }
}

SocketMesh::~SocketMesh() {
    for (const auto& row : sockets_) {
        for (const int socket : row) {
            if (socket >= 0) {
                ::close(socket);
            }
        }
    }
}

std::unique_ptr<Bootstrap> SocketMesh::bootstrap(int rank) const {
    return std::make_unique<SocketBootstrap>(rank, sockets_[static_cast<std::size_t>(rank)]);
}

}  // namespace sluice::test
