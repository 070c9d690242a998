// Started by mpirun: the cases of every bootstrap, then what a rank that stays away does to the others.
//   bootstrap_mpi_program RANKS [late RANK | lost RANK]
#include "runtime/exchange/bootstrap_mpi.h"
#include "tests/exchange/bootstrap_cases.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

int main(int argc, char** argv) {
    using namespace std::chrono_literals;
    try {
        const auto bootstrap = sluice::MpiBootstrap::create().value();
        if (argc < 2 || bootstrap->size() != std::atoi(argv[1])) {
            std::fprintf(stderr, "%d ranks, expected %s\n", bootstrap->size(), argc < 2 ? "a number" : argv[1]);
            return 1;
        }
        sluice::bootstrap_cases(*bootstrap);
        if (argc == 4 && std::string(argv[2]) == "late") {
            const int late = std::atoi(argv[3]);
            if (bootstrap->rank() == late) {
                std::this_thread::sleep_for(2s);
                return 0;
            }
            const sluice::Status status = bootstrap->barrier(sluice::Deadline::after(300ms));
            const std::string expected =
                "1 of " + std::to_string(bootstrap->size()) + " ranks before the deadline: " + argv[3];
            if (status.code() != sluice::StatusCode::kDeadlineExceeded ||
                status.message().find(expected) == std::string::npos) {
                std::fprintf(stderr, "rank %d: unexpected: %s\n", bootstrap->rank(), status.message().c_str());
                std::_Exit(1);
            }
            std::printf("rank %d: missing rank named\n", bootstrap->rank());
            std::fflush(stdout);
            std::this_thread::sleep_for(1s);  // so that mpirun ends nobody before all have printed
            std::_Exit(0);
        }
        if (argc == 4 && std::string(argv[2]) == "lost") {
            if (bootstrap->rank() == std::atoi(argv[3])) {
                std::this_thread::sleep_for(5s);
                std::_Exit(0);
            }
            bootstrap->abandon();
            bootstrap->finalize();
            std::printf("rank %d: has not waited\n", bootstrap->rank());
            std::fflush(stdout);
            std::this_thread::sleep_for(1s);  // as above
            std::_Exit(0);
        }
        bootstrap->finalize();
        std::printf("rank %d: good\n", bootstrap->rank());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        std::_Exit(1);
    }
    return 0;
}
