#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "serve/http_client.h"
#include "serve/http_server.h"
#include "tests/serve/raw_socket.h"
#include "tests/serve/test_certificate.h"
#include "tests/serve/test_handler.h"

namespace bev {
namespace {

using test::RawSocket;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const test::CertificateFiles& certificate() {
  static const test::CertificateFiles files = test::make_certificate("serve_tls");
  return files;
}

HttpServerOptions tls_options() {
  HttpServerOptions options;
  options.port = 0;
  options.tls_certificate = certificate().certificate;
  options.tls_key = certificate().key;
  return options;
}

HttpRequest echo(std::string body) {
  return {.method = "POST", .path = "/echo", .body = std::move(body)};
}

std::string reason_of_failure(const HttpClientOptions& options) {
  try {
    fetch(options, echo("x"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Tls, CarriesAnswersOfAnySize) {
  test::TestHandler handler;
  HttpServer server(tls_options(), handler);
  EXPECT_EQ(server.url(), concat("https://127.0.0.1:", server.port()));
  HttpClientOptions options = {.url = server.url(), .verify_tls = false};
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{20'000'000}}) {
    std::string body(size, 'x');
    EXPECT_EQ(fetch(options, echo(body)).body, body);
  }
  EXPECT_TRUE(test::eventually([&] { return server.connections() == 0; }));
}

TEST(Tls, RefusalReachesAClientThatIsSending) {
  test::TestHandler handler;
  HttpServerOptions options = tls_options();
  options.max_body_bytes = 1000;
  HttpServer server(options, handler);
  for (int i = 0; i < 5; ++i) {
    HttpResponse answer =
        fetch({.url = server.url(), .verify_tls = false}, echo(std::string(10'000'000, 'x')));
    ASSERT_EQ(answer.status, 413) << i;
  }
}

TEST(Tls, StreamsAndSeesClientsLeave) {
  test::TestHandler handler;
  HttpServer server(tls_options(), handler);
  struct Sink final : HttpClientSink {
    void on_data(ExchangeId, std::string_view bytes) override { data.append(bytes); }
    void on_done(ExchangeId, const std::string& reason) override { error = reason; }
    std::string data, error = "none";
  } sink;
  HttpClient client({.url = server.url(), .verify_tls = false}, sink);
  ExchangeId id = client.start({.method = "GET", .path = "/held"});
  while (handler.kept() == 0) client.run_until(0);
  std::shared_ptr<HttpExchange> exchange = handler.take();
  exchange->begin_stream({.content_type = "text/plain", .body = "one"});
  exchange->write("two");
  while (sink.data != "onetwo") client.run_until(0);
  client.cancel(id);
  client.run_until(0);
  EXPECT_EQ(sink.error, "cancelled");
  handler.await_closed(1);
  EXPECT_TRUE(exchange->closed());
}

TEST(Tls, ClientsVerifyTheCertificateUnlessTold) {
  test::TestHandler handler;
  HttpServer server(tls_options(), handler);
  EXPECT_THAT(reason_of_failure({.url = server.url()}),
              AllOf(HasSubstr(concat("TLS with 127.0.0.1:", server.port(), " failed: ")),
                    HasSubstr("self-signed certificate")));
  ::setenv("SSL_CERT_FILE", certificate().certificate.c_str(), 1);
  EXPECT_EQ(reason_of_failure({.url = server.url()}), "");
  EXPECT_EQ(reason_of_failure({.url = concat("https://localhost:", server.port())}), "");
  EXPECT_THAT(reason_of_failure({.url = concat("https://127.0.0.2:", server.port())}),
              HasSubstr("127.0.0.2"));
  ::unsetenv("SSL_CERT_FILE");
  EXPECT_TRUE(test::eventually([&] { return server.connections() == 0; }));
}

TEST(Tls, EndsConnectionsThatSpeakPlainTextOrNothing) {
  test::TestHandler handler;
  HttpServerOptions options = tls_options();
  options.read_timeout_s = 0.05;
  HttpServer server(options, handler);
  RawSocket plain(server.port());
  plain.send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(plain.receive_all().find("HTTP"), std::string::npos);
  RawSocket silent(server.port());
  EXPECT_EQ(silent.receive_all(), "");
  EXPECT_TRUE(test::eventually([&] { return server.connections() == 0; }));
  EXPECT_THAT(reason_of_failure({.url = concat("http://127.0.0.1:", server.port())}),
              HasSubstr("127.0.0.1"));
}

TEST(Tls, SaysWhichFileIsWrong) {
  test::TestHandler handler;
  auto reason = [&](const std::string& cert, const std::string& key) -> std::string {
    HttpServerOptions options = tls_options();
    options.tls_certificate = cert;
    options.tls_key = key;
    try {
      HttpServer server(options, handler);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      return error.what();
    }
    return "";
  };
  const auto& [cert, key] = certificate();
  const test::CertificateFiles other = test::make_certificate("serve_tls_other");
  const std::string empty = cert + ".empty";
  std::ofstream(empty).close();
  EXPECT_EQ(reason(cert, ""), "serve: --tls-cert needs --tls-key too");
  EXPECT_EQ(reason("", key), "serve: --tls-key needs --tls-cert too");
  EXPECT_EQ(reason("/no/such.crt", key),
            "serve: --tls-cert /no/such.crt cannot be read: No such file or directory");
  EXPECT_EQ(reason(cert, "/no/such.key"),
            "serve: --tls-key /no/such.key cannot be read: No such file or directory");
  for (const std::string& wrong : {empty, key}) {
    EXPECT_THAT(reason(wrong, key),
                AllOf(StartsWith(concat("serve: --tls-cert ", wrong, " cannot be used: ")),
                      HasSubstr("give a certificate in PEM form")));
  }
  for (const std::string& wrong : {empty, cert, other.key}) {
    EXPECT_THAT(reason(cert, wrong),
                StartsWith(concat("serve: --tls-key ", wrong, " cannot be used: ")));
  }
  std::filesystem::remove(empty);
}

}  // namespace
}  // namespace bev
