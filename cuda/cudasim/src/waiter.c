/*
 * Runs a program and does as it does, as su and sudo do: when the program is stopped it stops itself, and continued it
 * continues the program.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	pid_t child = fork();
	if (child == 0) {
		execv(argv[1], argv + 1);
		return 127;
	}
	for (int status; waitpid(child, &status, WUNTRACED) == child;) {
		if (!WIFSTOPPED(status))
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		kill(getpid(), SIGSTOP);
		kill(child, SIGCONT);
	}
	return 1;
}
