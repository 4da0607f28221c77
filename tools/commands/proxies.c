/* SPDX-License-Identifier: MIT */
/* `glmstream help proxy`, and the manual's sections with the same text and the threat model of the
 * server. tests/e2e/trust/smuggling.sh runs nginx with the configuration that is printed here. */
#include "src/base/num.h"
#include "tools/commands/manual.h"

#include <stdio.h>

static const char intro[] =
	"The server speaks HTTP/1.1 without encryption. TLS, certificates and HTTP/2 are the work of a "
	"proxy in front of it, on the same machine. The name under which the proxy is reached has to "
	"be named, and the proxy, so that its clients are distinguished:";

static const char command[] = "export GLMSTREAM_API_KEY=...\n"
							  "glmstream serve -m glm52-iq2.gguf --cache-gb 100 \\\n"
							  "    --allow-host llm.example.org --trusted-proxy 127.0.0.1\n";

static const struct {
	const char *name, *lines; /* where the lines go, the lines */
} proxies[] = {
	{"nginx, in /etc/nginx/conf.d/glmstream.conf",
		"upstream glmstream {\n"
		"    server 127.0.0.1:8080;\n"
		"    keepalive 16;\n"
		"}\n"
		"server {\n"
		"    listen 443 ssl;\n"
		"    server_name llm.example.org;\n"
		"    ssl_certificate /etc/ssl/llm.example.org.pem;\n"
		"    ssl_certificate_key /etc/ssl/private/llm.example.org.key;\n"
		"    client_max_body_size 32m;\n"
		"    location / {\n"
		"        proxy_pass http://glmstream;\n"
		"        proxy_http_version 1.1;\n"
		"        proxy_set_header Connection \"\";\n"
		"        proxy_set_header Host $host;\n"
		"        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n"
		"        proxy_buffering off;\n"
		"        proxy_read_timeout 1h;\n"
		"    }\n"
		"}\n"},
	{"Caddy, in /etc/caddy/Caddyfile (it gets the certificate by itself)",
		"llm.example.org {\n"
		"    request_body {\n"
		"        max_size 32MB\n"
		"    }\n"
		"    reverse_proxy 127.0.0.1:8080 {\n"
		"        flush_interval -1\n"
		"    }\n"
		"}\n"},
};

static const char *const notes[] = {
	"proxy_buffering off and flush_interval -1: a streamed answer has to come as it is written. "
	"(To nginx the server says so as well, with X-Accel-Buffering.)",
	"proxy_read_timeout: before the first token of a long prompt, and for a whole answer that is "
	"not streamed, nothing is sent. After nginx's own 60 s the request would end, and with it its "
	"computing.",
	"The proxy must not be the only protection: set an API key, and let no other machine reach the "
	"server's own port.",
};

int proxies_print(struct err *e)
{
	(void)e;
	manual_print_wrapped(intro);
	putchar('\n');
	manual_print_indented(command);
	for (size_t i = 0; i < ARRAY_LEN(proxies); i++) {
		printf("\n%s:\n", proxies[i].name);
		manual_print_indented(proxies[i].lines);
	}
	for (size_t i = 0; i < ARRAY_LEN(notes); i++) {
		putchar('\n');
		manual_print_wrapped(notes[i]);
	}
	return 0;
}

static void put_lines(const char *lines)
{
	fputs(".RS 4\n.nf\n", stdout);
	manual_put_text(lines);
	fputs(".fi\n.RE\n", stdout);
}

void proxies_print_man(void)
{
	fputs(".SH BEHIND A PROXY\n", stdout);
	manual_put_text(intro);
	putchar('\n');
	put_lines(command);
	for (size_t i = 0; i < ARRAY_LEN(proxies); i++) {
		fputs(".PP\n", stdout);
		manual_put_text(proxies[i].name);
		fputs(":\n", stdout);
		put_lines(proxies[i].lines);
	}
	for (size_t i = 0; i < ARRAY_LEN(notes); i++) {
		fputs(".PP\n", stdout);
		manual_put_text(notes[i]);
		putchar('\n');
	}
}

/* ---- the threat model ---- */

static const struct {
	const char *title, *text;
} threats[] = {
	{"What is protected",
		"The text of prompts and answers, stored prompts and kept responses; the files of the user "
		"who runs the server; the time of the card and of the processor, the memory, and the place "
		"on the drive; that each client gets the answer to its own request."},
	{"Who can reach it",
		"By default programs and users of this machine, and the pages that its browsers show. With "
		"--host everybody who can connect to that address. Behind a proxy everybody who can reach "
		"the proxy. With an API key those without it get /health, the empty page and a refusal."},
	{"Who is trusted",
		"The person who runs the server, root, the driver of the card, the kernel. Whoever has the "
		"key or, without one, can connect, may use the model and see /metrics and the state that "
		"the page shows, in which other clients are numbers. A trusted proxy is believed about the "
		"address of a client. Model files are checked, not trusted; who may write to the session "
		"folder decides what a stored prompt has computed."},
	{"Web pages of others",
		"A browser sends requests for any page that it shows. Refused are: an Origin that is "
		"neither the server's own nor that of --cors; a Host that is no name of this machine, "
		"where only this machine can connect or there is no key, so that a name that was made to "
		"point here gains nothing. The server's own page loads nothing from elsewhere, and what "
		"the model writes is shown as text or as cleaned HTML."},
	{"Malformed requests",
		"HTTP is read strictly: a request that a proxy could read in another way is refused, and "
		"its connection closed. This is tested behind nginx with some hundred forms of request "
		"smuggling. A request becomes an answer, a sentence with a status, or the end of its "
		"connection; it does not end the server."},
	{"Expensive requests",
		"Bounded are: connections, headers (32 KiB and 15 s), bodies (--max-body-mb, their time "
		"and their sum), JSON values and depth, the memory that a request takes before it is "
		"computed, "
		"meanwhile, and until its response was taken, what is remembered of answers "
		"(--remember-gb), the time of masks, the "
		"queue, tokens (the context). One client holds a share of these (--client-share), and "
		"clients whose answers are computed get the same time, however many answers each has. A "
		"client with several sessions gives one to another that waits: an answer is paused. "
		"What is refused gets 413, 429 or 503. A client that leaves ends its answer; one that "
		"takes less than 16 KiB of what waits for it in 60 s is cut off."},
	{"After a break-in",
		"On Linux the process has given up files that its options do not name (landlock), other "
		"programs and new connections (seccomp), where the kernel can do that; a line at the start "
		"says so. The unit for systemd adds its own limits."},
	{"What is not promised",
		"Encryption. Secrecy between clients who have the same key: response IDs are random and "
		"only their holder can name them, but the time until the first token shows whether "
		"somebody has sent the same beginning of a prompt. Fair speed: who has the key can make "
		"the others slow, up to its share. Protection from other users of the machine who can "
		"connect to a port without a key. What the model says, or does through tools that a "
		"client runs."},
	{"How to report a vulnerability",
		"Report it privately to the maintainers of the repository that the program comes from (on "
		"GitHub: Security, Report a vulnerability), not in a public issue. Say what glmstream "
		"--version prints, the command, and the request or file that shows it. Corrections go into "
		"the newest version only."},
};

void threats_print_man(void)
{
	fputs(".SH THREAT MODEL OF THE SERVER\n", stdout);
	for (size_t i = 0; i < ARRAY_LEN(threats); i++) {
		printf(".TP\n.B %s\n", threats[i].title);
		manual_put_text(threats[i].text);
		putchar('\n');
	}
}
