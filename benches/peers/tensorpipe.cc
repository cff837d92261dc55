// C++ TensorPipe: a message with one tensor of ordinary memory goes to a second process, which answers with one of its own.
//
// usage: tensorpipe shm|uv cma|basic BYTES SECONDS [CORE CORE]
// Prints one line of JSON: the median and the number of round trips.

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <tensorpipe/tensorpipe.h>

using namespace tensorpipe;
using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "tensorpipe: %s\n", what.c_str());
  std::_Exit(1);
}

void check(const Error& error) {
  if (error) {
    fail(error.what());
  }
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (core >= 0 && sched_setaffinity(0, sizeof(set), &set) != 0) {
    fail("sched_setaffinity: " + std::string(std::strerror(errno)));
  }
}

std::shared_ptr<Context> context(const std::string& over, const std::string& channel) {
  auto context = std::make_shared<Context>();
  if (over == "shm") {
    context->registerTransport(0, over, transport::shm::create());
  } else if (over == "uv") {
    context->registerTransport(0, over, transport::uv::create());
  } else {
    fail("there is no transport " + over);
  }
  if (channel == "cma") {
    context->registerChannel(0, channel, channel::cma::create());
  } else if (channel != "basic") {
    fail("there is no channel " + channel);
  }
  context->registerChannel(1, "basic", channel::basic::create());
  return context;
}

// One end: memory that is sent, and memory that is read into, both reused.
struct End {
  std::shared_ptr<Pipe> pipe;
  std::vector<char> sent, received;

  void write() {
    Message message;
    message.metadata = "round";
    if (!sent.empty()) {
      Message::Tensor tensor;
      tensor.buffer = CpuBuffer{.ptr = sent.data()};
      tensor.length = sent.size();
      message.tensors.push_back(std::move(tensor));
    }
    pipe->write(std::move(message), [](const Error& error) { check(error); });
  }

  template <typename Then>
  void read(Then then) {
    pipe->readDescriptor([this, then](const Error& error, Descriptor descriptor) {
      if (error) {
        return then(error);
      }
      Allocation allocation;
      for (const auto& tensor : descriptor.tensors) {
        received.resize(tensor.length);
        allocation.tensors.push_back({CpuBuffer{.ptr = received.data()}});
      }
      pipe->read(std::move(allocation), then);
    });
  }
};

[[noreturn]] void serve(const std::string& over, const std::string& channel, size_t bytes, int url) {
  auto ctx = context(over, channel);
  auto listener = ctx->listen({over == "shm" ? "shm://tp-peer-" + std::to_string(getpid()) : "uv://127.0.0.1"});
  std::promise<std::shared_ptr<Pipe>> accepted;
  listener->accept([&](const Error& error, std::shared_ptr<Pipe> pipe) {
    check(error);
    accepted.set_value(std::move(pipe));
  });
  std::string address = listener->url(over) + "\n";
  if (write(url, address.data(), address.size()) != ssize_t(address.size())) {
    fail("nobody wants the address");
  }
  End end{accepted.get_future().get(), std::vector<char>(bytes, 7), {}};
  std::promise<void> over_and_out;
  std::function<void(const Error&)> answer = [&](const Error& error) {
    if (error) {
      return over_and_out.set_value();
    }
    end.write();
    end.read(answer);
  };
  end.read(answer);
  over_and_out.get_future().wait();
  std::_Exit(0);
}

int main(int argc, char** argv) {
  if (argc != 5 && argc != 7) {
    fail("usage: tensorpipe shm|uv cma|basic BYTES SECONDS [CORE CORE]");
  }
  std::string over = argv[1], channel = argv[2];
  size_t bytes = std::strtoull(argv[3], nullptr, 10);
  double seconds = std::atof(argv[4]);
  int here = argc == 7 ? std::atoi(argv[5]) : -1, there = argc == 7 ? std::atoi(argv[6]) : -1;
  int url[2];
  if (pipe(url) != 0) {
    fail("pipe");
  }
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(there);
    serve(over, channel, bytes, url[1]);
  }
  close(url[1]);
  pin(here);
  std::string address;
  for (char byte; read(url[0], &byte, 1) == 1 && byte != '\n';) {
    address.push_back(byte);
  }
  auto ctx = context(over, channel);
  End end{ctx->connect(address), std::vector<char>(bytes, 1), {}};
  std::vector<double> micros;
  auto begin = Clock::now(), warm = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds / 5));
  auto until = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds * 1.2));
  for (size_t round = 0; round < 8 || Clock::now() < until; round++) {
    // Written anew, as in the other benchmarks.
    std::memset(end.sent.data(), int(round), end.sent.size());
    std::promise<void> done;
    auto start = Clock::now();
    end.write();
    end.read([&](const Error& error) {
      check(error);
      done.set_value();
    });
    done.get_future().wait();
    auto took = Clock::now() - start;
    if (end.received.size() != bytes || (bytes > 0 && (end.received.front() != 7 || end.received.back() != 7))) {
      fail("other bytes came back");
    }
    if (start > warm) {
      micros.push_back(std::chrono::duration<double, std::micro>(took).count());
    }
  }
  std::sort(micros.begin(), micros.end());
  std::printf("{\"p50_us\": %.3f, \"n\": %zu}\n", micros[micros.size() / 2], micros.size());
  std::fflush(stdout);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::_Exit(0);
}
