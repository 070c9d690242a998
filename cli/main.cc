#include "cli/commands.h"

#include <CLI/CLI.hpp>

#include <iostream>

int main(int argc, char** argv) {
    CLI::App app("Moves the weights of a model in training to the inference workers that generate with it.", "sluice");
    app.require_subcommand(1);
    app.failure_message([](const CLI::App* /*app*/, const CLI::Error& error) {
        return std::string("sluice: ") + error.what() + "; see --help\n";
    });
    sluice::cli::Run run;
    sluice::cli::add_plan_command(app, run);
    sluice::cli::add_sync_command(app, run);
    sluice::cli::add_info_command(app, run);
    sluice::cli::add_doctor_command(app, run);
    sluice::cli::add_inspect_command(app, run);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const bool asked = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);  // --help
        return app.exit(error, std::cout, std::cerr) == 0 && asked ? sluice::cli::kDone : sluice::cli::kBadInput;
    }
    return run();
}
