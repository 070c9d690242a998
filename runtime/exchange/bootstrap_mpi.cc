#include "runtime/exchange/bootstrap_mpi.h"

#include <fmt/format.h>

// The C++ bindings of MPI-2, which the header would drag in, need a library of their own.
#define OMPI_SKIP_MPICXX 1   // NOLINT(cppcoreguidelines-macro-usage)
#define MPICH_SKIP_MPICXX 1  // NOLINT(cppcoreguidelines-macro-usage)
#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <list>
#include <thread>
#include <utility>

namespace sluice {

namespace {

constexpr int kTag = 0x51;

Status check(int code, const char* call) {
    if (code == MPI_SUCCESS) {
        return ok_status();
    }
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    return internal_error(
        fmt::format("bootstrap: {} failed: {}", call, std::string_view(text.data(), static_cast<std::size_t>(length))));
}

void set_defaults() {
    // 0 = what the user has set stays. ob1, ^ucx and ^uct: no component of Open MPI may load a libucp of its own beside ours.
    // Isolated: without mpirun there is nobody to talk to, and starting a daemon for it takes a second.
    constexpr std::array<std::pair<const char*, const char*>, 6> kDefaults{{{"OMPI_MCA_pml", "ob1"},
                                                                            {"OMPI_MCA_osc", "^ucx"},
                                                                            {"OMPI_MCA_btl", "^uct,openib,ofi"},
                                                                            {"OMPI_MCA_coll", "^hcoll"},
                                                                            {"OMPI_MCA_mpi_yield_when_idle", "1"},
                                                                            {"OMPI_MCA_ess_singleton_isolated", "1"}}};
    for (const auto& [name, value] : kDefaults) {
        setenv(name, value, 0);  // NOLINT(concurrency-mt-unsafe): before there are threads, see create()
    }
}

}  // namespace

struct MpiBootstrap::Requests {
    struct Send {
        Message message;
        MPI_Request request = MPI_REQUEST_NULL;
    };
    std::list<Send> sends;
    std::shared_ptr<Blob> receiving;
    int receiving_from = 0;
    MPI_Request receive_request = MPI_REQUEST_NULL;
};

MpiBootstrap::MpiBootstrap() : requests_(std::make_unique<Requests>()) {}

Result<std::unique_ptr<MpiBootstrap>> MpiBootstrap::create() {
    set_defaults();
    int provided = 0;
    SLUICE_RETURN_IF_ERROR(check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    std::unique_ptr<MpiBootstrap> bootstrap(new MpiBootstrap);
    MPI_Comm_rank(MPI_COMM_WORLD, &bootstrap->rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &bootstrap->size_);
    return bootstrap;
}

MpiBootstrap::~MpiBootstrap() {
    finalize();
    if (failed()) {
        // MPI may still write to and read from what is in flight until the process ends.
        [[maybe_unused]] auto* const kept = requests_.release();
    }
}

void MpiBootstrap::finalize() {
    if (finalized_ || failed()) {
        return;
    }
    finalized_ = true;
    MPI_Finalize();
}

Status MpiBootstrap::start_send(int to, Message message) {
    Requests::Send& send = requests_->sends.emplace_back();
    send.message = std::move(message);
    // Messages are at most kMostBytes and a header long, which fits an int.
    const Status status = check(MPI_Isend(send.message->data(), static_cast<int>(send.message->size()), MPI_BYTE, to,
                                          kTag, MPI_COMM_WORLD, &send.request),
                                "MPI_Isend");
    if (!status.ok()) {
        requests_->sends.pop_back();
    }
    return status;
}

bool MpiBootstrap::sends_done() {
    for (auto send = requests_->sends.begin(); send != requests_->sends.end();) {
        int done = 0;
        // An error ends the request as well; that the message was lost shows at whoever waits for it.
        if (MPI_Test(&send->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0) {
            send = requests_->sends.erase(send);
        } else {
            ++send;
        }
    }
    return requests_->sends.empty();
}

Result<std::optional<Bootstrap::Received>> MpiBootstrap::poll() {
    sends_done();
    if (requests_->receiving) {
        return take_received();
    }
    int found = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status envelope;
    SLUICE_RETURN_IF_ERROR(
        check(MPI_Improbe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &found, &handle, &envelope), "MPI_Improbe"));
    if (found == 0) {
        return std::optional<Received>();
    }
    int bytes = 0;
    MPI_Get_count(&envelope, MPI_BYTE, &bytes);
    if (bytes < 0) {
        return internal_error(fmt::format("bootstrap: rank {} sent a message longer than 2 GiB", envelope.MPI_SOURCE));
    }
    requests_->receiving = std::make_shared<Blob>(static_cast<std::size_t>(bytes));
    requests_->receiving_from = envelope.MPI_SOURCE;
    SLUICE_RETURN_IF_ERROR(check(
        MPI_Imrecv(requests_->receiving->data(), bytes, MPI_BYTE, &handle, &requests_->receive_request), "MPI_Imrecv"));
    return take_received();
}

Result<std::optional<Bootstrap::Received>> MpiBootstrap::take_received() {
    int done = 0;
    SLUICE_RETURN_IF_ERROR(
        check(MPI_Test(&requests_->receive_request, &done, MPI_STATUS_IGNORE), "MPI_Test of a receive"));
    if (done == 0) {
        return std::optional<Received>();
    }
    return std::optional(Received{requests_->receiving_from, std::exchange(requests_->receiving, nullptr)});
}

void MpiBootstrap::pause(int tries) {
    // Short at first, for ranks that are about to come; long later, so that waiting costs no core.
    std::this_thread::sleep_for(std::chrono::microseconds(tries < 20 ? 20 : tries < 100 ? 200 : 2000));
}

std::string MpiBootstrap::library_version() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    // Open MPI counts the zero at the end.
    const std::string line(text.data());
    return line.substr(0, line.find('\n'));
}

}  // namespace sluice
