#pragma once

// Boost 1.74's Asio uses std::exchange in C++20 mode without including its header: this file is the one place that
// includes Asio.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <utility>
